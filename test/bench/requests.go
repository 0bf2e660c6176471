package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// requests is the cost of a request of plain HTTP, on connections that are kept or on one for each request.
func requests(name, against string, clients int, keep bool) measure {
	how := "each on a connection of its own"
	if keep {
		how = "on a connection that is kept"
	}
	return measure{
		name: name,
		text: fmt.Sprintf("%d clients send GET requests one after the other, %s, and read %d bytes of body. %d names.",
			clients, how, pageSize, gatewayNames),
		against: against,
		columns: []column{
			{"CPU per request", microseconds, true},
			{"requests/s", count, true},
			{"p50", milliseconds, false},
			{"p99", milliseconds, true},
		},
		take: requesting(clients, keep).values(func(u use) []float64 {
			return []float64{u.cpuPer(), u.perSecond(), u.percentile(0.5), u.percentile(0.99)}
		}),
	}
}

// requesting is the load of requests.
func requesting(clients int, keep bool) load {
	return func(ctx context.Context, s *server, m *meter) error {
		return together(ctx, clients, func(ctx context.Context, i int) error {
			var w *web
			defer func() { w.close() }()
			for ; ctx.Err() == nil; i += clients {
				began := time.Now()
				if w == nil {
					var err error
					if w, err = s.web(); err != nil {
						return err
					}
				}
				if err := w.get(connected(i), keep, http.StatusOK); err != nil {
					return err
				}
				if !keep {
					w.close()
					w = nil
				}
				m.took(time.Since(began))
			}
			return nil
		})
	}
}

// web is a connection for plain HTTP.
type web struct {
	server *server
	conn   net.Conn
	from   *bufio.Reader
}

func (s *server) web() (*web, error) {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(s.addr))
	if err != nil {
		return nil, err
	}
	return &web{s, c, bufio.NewReader(c)}, nil
}

func (w *web) close() {
	if w != nil {
		w.conn.Close()
	}
}

// get sends a request for a name and reads the response, which has to have the status.
func (w *web) get(name string, keep bool, status int) error {
	host := fmt.Sprintf("%s:%d", name, w.server.webPort)
	target := "/"
	if w.server.proxyTo != 0 {
		target = "http://" + host + "/"
	}
	connection := "close"
	if keep {
		connection = "keep-alive"
	}
	w.conn.SetDeadline(time.Now().Add(tunnelPatience))
	if _, err := fmt.Fprintf(w.conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nConnection: %s\r\n\r\n", target, host, connection); err != nil {
		return err
	}
	r, err := http.ReadResponse(w.from, nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	switch {
	case err != nil:
		return err
	case r.StatusCode != status:
		return fmt.Errorf("%s: got status %s, want %d", name, r.Status, status)
	case status == http.StatusOK && n != pageSize:
		return fmt.Errorf("%s: got a body of %d bytes, want %d", name, n, pageSize)
	case keep && r.Close:
		return errors.New("the connection is not kept")
	}
	return nil
}

// proveWeb waits until a server listens, and requests all names and one that no rule admits.
func (l *lab) proveWeb(ctx context.Context, s *server) error {
	if err := s.process.awaitTCP(ctx, s.addr.String()); err != nil {
		return err
	}
	s.webPort = l.upstream.web.Port()
	one := func(name string, status int) error {
		w, err := s.web()
		if err != nil {
			return err
		}
		defer w.close()
		return w.get(name, false, status)
	}
	for i := range gatewayNames {
		if err := one(connected(i), http.StatusOK); err != nil {
			return fmt.Errorf("%w: %s", err, s.process.lastWords())
		}
	}
	return one(denied(0), http.StatusForbidden)
}
