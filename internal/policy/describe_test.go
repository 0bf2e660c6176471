package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
)

func TestReach(t *testing.T) {
	set, err := compileText(`policy default {
		preset npm
		allow  x.example .y.example:443,8443 *.z.example:*
		deny   no.y.example
		allow_list list
	}
	policy open {
		client 10.0.0.0/8
		mode   open
		ports  443
		deny   x.example
	}
	policy none {
		client 10.1.0.0/16
	}
	`, "a.list.example\nb.list.example:8443\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, client, listener string
		most                   int
		want                   string
	}{
		{"rules of all kinds", "172.30.0.1", "", 10,
			"{default strict [80 443] [npm] [x.example .y.example:443,8443 *.z.example:* a.list.example b.list.example:8443] false} true"},
		{"as many as there are", "172.30.0.1", "", 5,
			"{default strict [80 443] [npm] [x.example .y.example:443,8443 *.z.example:* a.list.example b.list.example:8443] false} true"},
		{"no more than that", "172.30.0.1", "", 2, "{default strict [80 443] [npm] [x.example .y.example:443,8443] true} true"},
		{"none", "172.30.0.1", "", 0, "{default strict [80 443] [npm] [] true} true"},
		{"of the client, whatever the listener says", "172.30.0.1", "open", 1, "{default strict [80 443] [npm] [x.example] true} true"},
		{"open", "10.0.0.1", "", 10, "{open open [443] [] [] false} true"},
		{"a policy without rules", "10.1.0.1", "", 10, "{none strict [80 443] [] [] false} true"},
		{"the listener's policy is gone", "10.0.0.1", "gone", 10, "{open strict [] [] [] false} false"},
		{"no client", "", "", 10, "{ strict [] [] [] false} false"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, _ := netip.ParseAddr(tc.client)
			r, ok := set.Select(client, tc.listener).Reach(tc.most)
			if got := fmt.Sprint(r, ok); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
	r, _ := set.Select(netip.MustParseAddr("10.0.0.1"), "").Reach(1)
	r.Ports[0] = 1
	if again, _ := set.Select(netip.MustParseAddr("10.0.0.1"), "").Reach(1); again.Ports[0] != 443 {
		t.Errorf("after a change of what was returned: %v", again.Ports)
	}
}

// A preset that consists of others is told as these: the lines of a log name them.
func TestReachPresets(t *testing.T) {
	r, ok := policyOf(t, "preset agents").Reach(10)
	if !ok || fmt.Sprint(r.Presets) != fmt.Sprint(presetTopics()) || len(r.Rules) != 0 {
		t.Errorf("got %v, want %v", r, presetTopics())
	}
}

func TestPlace(t *testing.T) {
	d := policyOf(t, "allow x.example\npreset npm").Lookup(mustName(t, "registry.npmjs.org"), 443)
	if file, line := d.Rule.Place(); fmt.Sprintf("%s:%d", file, line) != d.Rule.String() || line == 0 {
		t.Errorf("got %s:%d, want %s", file, line, d.Rule)
	}
	if file, line := (Rule{}).Place(); file != "" || line != 0 {
		t.Errorf("of no rule: %s:%d", file, line)
	}
	if got := testing.AllocsPerRun(100, func() { d.Rule.Place() }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// What has a place of a rule must not keep a policy of a million rules in memory.
func TestPlaceKeepsNoPolicy(t *testing.T) {
	freed := make(chan struct{})
	place := func() string {
		d := policyOf(t, "allow x.example").Lookup(mustName(t, "x.example"), 443)
		runtime.AddCleanup(d.Rule.p, func(c chan struct{}) { close(c) }, freed)
		file, _ := d.Rule.Place()
		return file
	}()
	for range 100 {
		runtime.GC()
		select {
		case <-freed:
			runtime.KeepAlive(place)
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("the policy is still in memory")
}
