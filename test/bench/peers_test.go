package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/sandboxallow/sandboxallow/test/need"
)

// TestPeers starts those that Debian packages, has them prove that they do their job, and takes each measure once. It
// is no measurement: it holds that configurations and loads fit what is installed.
func TestPeers(t *testing.T) {
	things := []need.Thing{need.File(nginxStream)}
	for _, p := range programs {
		things = append(things, func() string {
			if _, err := p.find(); err != nil {
				return p.name
			}
			return ""
		})
	}
	need.All(t, things...)
	l, err := newLab(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if l.zone.err53 != nil {
		need.All(t, func() string { return l.zone.err53.Error() })
	}
	tiny := pace{rounds: 1, anew: 1, warm: 10 * time.Millisecond, window: 50 * time.Millisecond}
	gateways := []peer{nginx(l, peerNginx), haproxy(l, peerHAProxy), sniproxy(l, peerSNIProxy)}
	for _, s := range []suite{
		{name: "dns", peers: []peer{dnsmasq(l, peerDnsmasq, 20), unbound(l, peerUnbound, 20)}, measures: []measure{resolving("dns", "")}},
		{name: "tunnels", peers: append(gateways, squid(l, peerSquid, byCONNECT)), measures: []measure{
			newTunnels("tunnels", "", 4, 0), bulk("download", "", download, 2), bulk("upload", "", upload, 2), pingPong("ping", ""),
		}},
		{name: "idle", anew: true, peers: gateways, measures: []measure{idling("idle", "", 100, l.descriptors)}},
		{name: "proxy", peers: []peer{squid(l, peerSquid, byProxy)}, measures: []measure{requests("kept", "", 2, true), requests("not kept", "", 2, false)}},
	} {
		tables, err := s.run(t.Context(), tiny)
		if err != nil {
			t.Fatal(err)
		}
		for _, tb := range tables {
			for _, r := range tb.rows {
				if r.err != nil || len(r.rounds) != 1 || !(r.rounds[0][0] > 0) {
					t.Errorf("%s, %s, %s: got %v, %v", s.name, tb.measure.name, r.peer.name, r.rounds, r.err)
				}
			}
		}
	}
}

// TestConfigurations holds that each file can be filled in.
func TestConfigurations(t *testing.T) {
	files, err := filepath.Glob("peers/*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	s := &setting{Dir: t.TempDir(), Rules: rules(4)}
	for _, f := range files {
		if _, err := s.write(filepath.Base(f)); err != nil {
			t.Error(err)
		}
	}
}
