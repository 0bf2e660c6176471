package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// head is the first line of a table.
const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// The tables are those of a little-endian machine.
func TestListeners(t *testing.T) {
	rest := " 100 0 0 10 0\n"
	line := func(addr, state, uid, inode string) string {
		return "   0: " + addr + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000 " +
			uid + "        0 " + inode + " 1 0000000000000000" + rest
	}
	for _, tc := range []struct {
		name, table string
		want        []socket
		err         string
	}{
		{name: "nobody", table: head},
		{name: "loopback", table: head + line("0100007F:0035", "0A", "65532", "4711"),
			want: []socket{{netip.MustParseAddrPort("127.0.0.1:53"), 65532, 4711}}},
		{name: "wildcard", table: head + line("00000000:01BB", "0A", "0", "1"),
			want: []socket{{netip.MustParseAddrPort("0.0.0.0:443"), 0, 1}}},
		{name: "IPv6", table: head + line("B80D0120000000000000000001000000:2710", "0A", "0", "1"),
			want: []socket{{netip.MustParseAddrPort("[2001:db8::1]:10000"), 0, 1}}},
		{name: "IPv6 wildcard", table: head + line("00000000000000000000000000000000:0035", "0A", "0", "1"),
			want: []socket{{netip.MustParseAddrPort("[::]:53"), 0, 1}}},
		{name: "IPv4 within IPv6", table: head + line("0000000000000000FFFF00000100007F:0035", "0A", "0", "1"),
			want: []socket{{netip.MustParseAddrPort("127.0.0.1:53"), 0, 1}}},
		{name: "others do not listen", table: head + line("0100007F:0035", "01", "0", "1") +
			line("0100007F:0036", "0A", "0", "2") + line("0100007F:0037", "06", "0", "0"),
			want: []socket{{netip.MustParseAddrPort("127.0.0.1:54"), 0, 2}}},

		{name: "other file", table: "Inter-|   Receive\n", err: "line 1: "},
		{name: "blank head", table: "\n", err: "line 1: "},
		{name: "no head", table: line("0100007F:0035", "0A", "0", "1"), err: "line 1: "},
		{name: "blank line", table: head + "\n", err: "line 2: 0 fields"},
		{name: "short line", table: head + "   0: 0100007F:0035 00000000:0000 0A\n", err: "line 2: 4 fields"},
		{name: "no port", table: head + line("0100007F", "0A", "0", "1"), err: `line 2: address "0100007F"`},
		{name: "no address", table: head + line(":0035", "0A", "0", "1"), err: "line 2: address"},
		{name: "address too short", table: head + line("00007F:0035", "0A", "0", "1"), err: "line 2: address"},
		{name: "address of 8 octets", table: head + line("0100007F0100007F:0035", "0A", "0", "1"), err: "line 2: address"},
		{name: "address not hexadecimal", table: head + line("127.0..1:0035", "0A", "0", "1"), err: "line 2: address"},
		{name: "port too long", table: head + line("0100007F:10035", "0A", "0", "1"), err: "line 2: address"},
		{name: "port too short", table: head + line("0100007F:35", "0A", "0", "1"), err: "line 2: address"},
		{name: "port with a sign", table: head + line("0100007F:+035", "0A", "0", "1"), err: "line 2: address"},
		{name: "two ports", table: head + line("0100007F:0035:0035", "0A", "0", "1"), err: "line 2: address"},
		{name: "negative user", table: head + line("0100007F:0035", "0A", "-1", "1"), err: "line 2: user"},
		{name: "user too large", table: head + line("0100007F:0035", "0A", "4294967296", "1"), err: "line 2: user"},
		{name: "no inode", table: head + line("0100007F:0035", "0A", "0", "x"), err: "line 2: inode"},
		{name: "endless line", table: head + strings.Repeat("x", 1<<17), err: "token too long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := listeners(strings.NewReader(tc.table))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, %v, want an error with %q", got, err, tc.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}
