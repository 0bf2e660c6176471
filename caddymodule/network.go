package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddytls"

	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
)

func init() {
	caddy.RegisterNetwork(brokerNetwork, listenBroker)
}

// The network address `sandboxallow/broker:PORT` has no socket. What it accepts is what our own handlers hand to
// it, so whoever can reach the gateway cannot reach it.
const (
	brokerNetwork = "sandboxallow"
	brokerHost    = "broker"
	brokerAddress = brokerNetwork + "/" + brokerHost
)

// listenBroker implements caddy.ListenerFunc. A listener belongs to the app of its own configuration: around a
// reload, what the handlers of one configuration accept never gets to the servers of the other.
func listenBroker(ctx context.Context, network, host, ports string, offset uint, _ net.ListenConfig) (any, error) {
	first, _, _ := strings.Cut(ports, "-")
	start, err := strconv.ParseUint(first, 10, 16)
	port := uint(start) + offset
	if host != brokerHost || err != nil || port == 0 || port > 1<<16-1 {
		return nil, fmt.Errorf("%s/%s:%s, accepted is %s with a port", network, host, ports, brokerAddress)
	}
	cc, ok := ctx.(caddy.Context)
	if !ok {
		return nil, fmt.Errorf("%s is for sites", brokerAddress)
	}
	app, err := appOf(cc)
	if err != nil {
		return nil, err
	}
	if _, err := app.sites(); err != nil {
		return nil, err // as Start does, which may come later
	}
	l := app.inside.at(uint16(port))
	if !l.taken.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%v is listened on already", l.Addr())
	}
	return l, nil
}

// inside are the listeners of a configuration that have no socket.
type inside struct {
	mu     sync.Mutex
	byPort map[uint16]*insideListener
}

// at returns the listener of a port. Whoever asks first makes it: a connection may come before the server does.
func (i *inside) at(port uint16) *insideListener {
	i.mu.Lock()
	defer i.mu.Unlock()
	l := i.byPort[port]
	if l == nil {
		l = &insideListener{port: port, conns: make(chan net.Conn), closed: make(chan struct{})}
		if i.byPort == nil {
			i.byPort = make(map[uint16]*insideListener)
		}
		i.byPort[port] = l
	}
	return l
}

var (
	errServerGone = errors.New("the server of the site has stopped")
	errServerLate = errors.New("the server of the site accepts nothing")
)

// insideListener accepts what is fed to it.
type insideListener struct {
	port   uint16
	taken  atomic.Bool
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// feed has c accepted. The server may still be starting: it has until the deadline.
func (l *insideListener) feed(c net.Conn, deadline time.Time) error {
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-l.closed:
		return errServerGone
	default:
	}
	select {
	case l.conns <- c:
		return nil
	case <-l.closed:
		return errServerGone
	case <-late.C:
		return errServerLate
	}
}

func (l *insideListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *insideListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *insideListener) Addr() net.Addr { return insideAddr(l.port) }

// insideAddr is an address of our network, by its port.
type insideAddr uint16

func (insideAddr) Network() string  { return brokerNetwork }
func (a insideAddr) String() string { return fmt.Sprintf("%s:%d", brokerAddress, uint16(a)) }

// brokeredConn is a client's connection that was admitted to a name and that ends at the site of the name,
// instead of a tunnel to the upstream. It begins with what was read of it to find the name.
type brokeredConn struct {
	net.Conn
	read []byte // what comes before the rest

	name     policy.Name
	port     uint16
	listener string // the policy that the listener names
	counters *tunnel.Counters

	once   sync.Once
	closed chan struct{}
}

func (c *brokeredConn) Read(p []byte) (int, error) {
	if len(c.read) > 0 {
		n := copy(p, c.read)
		c.read = c.read[n:]
		c.counters.In.Add(int64(n))
		return n, nil
	}
	n, err := c.Conn.Read(p)
	c.counters.In.Add(int64(n))
	return n, err
}

func (c *brokeredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.counters.Out.Add(int64(n))
	return n, err
}

func (c *brokeredConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// brokerConnKey is the key of a *brokeredConn in the context of its requests.
type brokerConnKey struct{}

// withBrokeredConn notes in the context of a connection which one of ours it is, if it is one.
func withBrokeredConn(ctx context.Context, c net.Conn) context.Context {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = outer.NetConn()
	}
	if b, ok := c.(*brokeredConn); ok {
		return context.WithValue(ctx, brokerConnKey{}, b)
	}
	return ctx
}

// errNoSite is why a name that a site brokers is not reached on a port that none of its sites has.
var errNoSite = errors.New("no site brokers the name on this port, and nothing goes by the sites that do on others")

// broker has the site of a name take over an admitted connection, and returns once the site has closed it. read is
// what was read of it. With an error the connection was not taken over.
func (a *App) broker(client net.Conn, read []byte, n policy.Name, r *record, set *policy.Set) error {
	t := r.opened(n, func() { resetAll(client) })
	t.brokered = true
	c := &brokeredConn{
		Conn: client, read: read, name: n, port: r.Port, listener: r.listener, counters: t.counters, closed: make(chan struct{}),
	}
	client.SetDeadline(time.Time{}) // those are the server's from now on
	if err := a.feed(c); err != nil {
		return err
	}
	a.decided(r)
	open.add(t, a, set)
	<-c.closed
	open.remove(t)
	a.closed(t, r)
	return nil
}

// feed hands a connection to the server of its site. If this configuration is on its way out, that is the server of
// the one in force, if one of its sites brokers the name too.
func (a *App) feed(c *brokeredConn) error {
	deadline := time.Now().Add(time.Duration(a.HelloTimeout))
	if err := awaitCertificate(c.name, deadline); err != nil {
		return err
	}
	err := a.inside.at(c.port).feed(c, deadline)
	now := running.judge()
	if errors.Is(err, errServerGone) && now != nil && now != a && now.brokering(c.name, c.port) == brokeredHere {
		return now.inside.at(c.port).feed(c, deadline)
	}
	return err
}

var errNoCertificate = errors.New("there is no certificate for the name")

// awaitCertificate waits for the certificate of a site that was just configured: Caddy gets it when the site is up
// already, and refuses clients that are early.
func awaitCertificate(n policy.Name, deadline time.Time) error {
	const between = 5 * time.Millisecond
	for len(caddytls.AllMatchingCertificates(n.String())) == 0 {
		if time.Now().After(deadline) {
			return errNoCertificate
		}
		time.Sleep(between)
	}
	return nil
}
