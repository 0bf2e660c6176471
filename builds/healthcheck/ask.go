package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

// opcodeStatus is STATUS, RFC 1035 §4.1.1. No server implements it, so that it is answered with NOTIMP, by
// CoreDNS before a plugin, a log or a metric sees it.
const opcodeStatus = 2

// dial connects to what listens on an address. The wildcard is dialled on loopback; that of IPv6 takes IPv4
// too unless it was told not to, and is all there is where IPv6 is turned off.
func dial(ctx context.Context, addr netip.AddrPort) (*net.TCPConn, error) {
	hosts := []netip.Addr{addr.Addr()}
	switch addr.Addr() {
	case netip.IPv4Unspecified():
		hosts = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	case netip.IPv6Unspecified():
		hosts = []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	var d net.Dialer
	var err error
	for _, host := range hosts {
		var c net.Conn
		if c, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(host, addr.Port()).String()); err == nil {
			return c.(*net.TCPConn), nil
		}
	}
	return nil, err
}

// askAny ends a connection without a word and expects that the server does so too, or says something first.
func askAny(c *net.TCPConn) error {
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("did not close a connection that had ended: %w", err)
	}
	return nil
}

// askDNS sends a query and expects an answer to it.
func askDNS(c net.Conn) error {
	id := uint16(rand.Uint32())
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: id, OpCode: opcodeStatus}}
	// Over TCP two octets with the length come first, RFC 1035 §4.2.2.
	b, err := query.AppendPack(make([]byte, 2, 14))
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	if _, err := c.Write(b); err != nil {
		return err
	}
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return fmt.Errorf("did not answer a DNS query: %w", err)
	}
	answer := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c, answer); err != nil {
		return fmt.Errorf("did not answer a DNS query: %w", err)
	}
	var p dnsmessage.Parser
	header, err := p.Start(answer)
	if err != nil {
		return fmt.Errorf("answered a DNS query with something else: %w", err)
	}
	if header.ID != id || !header.Response || header.OpCode != opcodeStatus {
		return fmt.Errorf("answered another DNS query: %s", header.GoString())
	}
	return nil
}
