package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
)

const (
	// ednsSize is the UDP payload we accept (RFC 9715 §3.2): replies that do not
	// fit an unfragmented packet come truncated, and again over TCP.
	ednsSize = 1232

	// maxPackets bounds what is read on one UDP socket: replies to our own
	// repetitions, and the guesses of forgers.
	maxPackets = 256
)

var (
	errNoReply   = errors.New("no reply")
	errMalformed = errors.New("malformed reply")
)

// query makes the message that asks q.
func query(q dns.Question) *dns.Msg {
	m := &dns.Msg{Question: []dns.Question{q}}
	m.Id = dns.Id()
	m.RecursionDesired = true
	// No client subnet (RFC 7871): where the sandbox is, is not for others.
	m.SetEdns0(ednsSize, false)
	return m
}

// exchange asks one server over UDP and, if the reply is truncated, over TCP. It
// ends when ctx does. The socket and its port, and the number of the message,
// are new each time, as against forgers they are all the secret there is.
func exchange(ctx context.Context, server netip.AddrPort, q dns.Question, repeat time.Duration) (*dns.Msg, error) {
	m, err := exchangeUDP(ctx, server, query(q), repeat)
	if err == nil && m.Truncated {
		m, err = exchangeTCP(ctx, server, query(q))
	}
	if err == nil {
		return m, nil
	}
	if ctx.Err() != nil {
		err = errNoReply // and not that we closed the socket
	}
	return nil, err
}

// exchangeUDP sends m every repeat, in case it is lost, and goes on waiting for
// replies to all of them: a slow server is not asked anew.
func exchangeUDP(ctx context.Context, server netip.AddrPort, m *dns.Msg, repeat time.Duration) (*dns.Msg, error) {
	packet, err := m.Pack()
	if err != nil {
		return nil, err
	}
	// Connected, so that the kernel drops what is from somewhere else, and
	// tells us when nothing listens there.
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()

	buf := make([]byte, dns.DefaultMsgSize)
	var sent time.Time
	for range maxPackets {
		if now := time.Now(); now.Sub(sent) >= repeat {
			if _, err := c.Write(packet); err != nil {
				return nil, err
			}
			sent = now
			c.SetReadDeadline(sent.Add(repeat))
		}
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n < 2 || binary.BigEndian.Uint16(buf) != m.Id {
			continue
		}
		reply := new(dns.Msg)
		err = reply.Unpack(buf[:n])
		if answers(reply, m.Id, m.Question[0]) && (err == nil || reply.Truncated) {
			return reply, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
	}
	return nil, errNoReply
}

func exchangeTCP(ctx context.Context, server netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	c := dns.Conn{Conn: conn}
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	reply, err := c.ReadMsg()
	if err != nil {
		return nil, err
	}
	if !answers(reply, m.Id, m.Question[0]) {
		return nil, errMalformed
	}
	return reply, nil
}
