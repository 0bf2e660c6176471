package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"
)

// suite is peers that are started together and measured in turns.
type suite struct {
	name     string
	peers    []peer
	measures []measure
}

// peer is one way to do the job.
type peer struct {
	name  string
	setUp string // for the results
	ours  bool
	start func(context.Context) (*server, error) // ready to serve, and seen to do the job
}

// server is a peer that runs.
type server struct {
	addr    netip.AddrPort // where clients connect
	version string
	process *process   // nil where nothing stands between the client and the upstream
	asked   *questions // of a DNS server, else nil
	refuses bool       // clients ask for names that no rule admits

	// before is what comes in a tunnel to a name before the ClientHello, nil for nothing.
	before func(c net.Conn, name string) error
}

// measure is a kind of load and what is to be read off it.
type measure struct {
	name    string
	text    string // how it is done, for the results
	against string // the peer that ratios are relative to
	columns []column

	// load keeps s busy until ctx ends, and counts in m what s has done. An error means that s did not do
	// its job: nothing is forgiven, for what fails is often cheap.
	load func(ctx context.Context, s *server, m *meter) error

	// values are those of the columns; NaN where there is none.
	values func(use) []float64
}

// column is one figure of a measure.
type column struct {
	name   string
	format func(float64) string
	ratio  bool // shown beside that of the peer that the measure names
}

// pace is how much is measured.
type pace struct {
	rounds int
	warm   time.Duration // under load before each window
	window time.Duration
}

var (
	full  = pace{rounds: 5, warm: 250 * time.Millisecond, window: 1750 * time.Millisecond}
	brief = pace{rounds: 3, warm: 150 * time.Millisecond, window: 500 * time.Millisecond}
)

// table is what came out of one measure.
type table struct {
	measure measure
	rows    []*row // in the order of the peers
	crowd   crowd  // once they were started
}

// row is one peer in one measure.
type row struct {
	peer    peer
	version string
	rounds  [][]float64 // values by round
	err     error       // there are no figures
}

// run starts the peers and takes each measure, round by round, from each of them. It returns an error only
// if it was interrupted.
func (s suite) run(ctx context.Context, p pace) ([]table, error) {
	servers := make([]*server, len(s.peers))
	failed := make([]error, len(s.peers))
	for i, peer := range s.peers {
		fmt.Fprintf(os.Stderr, "bench: %s: starting %s\n", s.name, peer.name)
		servers[i], failed[i] = peer.start(ctx)
		if servers[i] != nil && servers[i].process != nil {
			defer servers[i].process.stop()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if failed[i] != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", s.name, peer.name, failed[i])
		}
	}
	crowd := watchCrowd(p.window)
	if crowd > tolerated {
		fmt.Fprintf(os.Stderr, "bench: %s: %v\n", s.name, crowd)
	}
	var tables []table
	for _, m := range s.measures {
		t := table{measure: m, crowd: crowd}
		for i, peer := range s.peers {
			row := &row{peer: peer, err: failed[i]}
			if failed[i] == nil {
				row.version = servers[i].version
			}
			t.rows = append(t.rows, row)
		}
		if err := t.fill(ctx, servers, p); err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// fill measures in turns, so that whatever else the machine does meets every peer alike; each round begins
// with another peer, so that none always follows the same one.
func (t *table) fill(ctx context.Context, servers []*server, p pace) error {
	for round := range p.rounds {
		fmt.Fprintf(os.Stderr, "bench: %s: round %d of %d\n", t.measure.name, round+1, p.rounds)
		for i := range t.rows {
			i := (i + round) % len(t.rows)
			row := t.rows[i]
			if row.err != nil {
				continue
			}
			u, err := t.measure.observe(ctx, servers[i], p)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				row.err = fmt.Errorf("round %d: %w", round+1, err)
				fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", t.measure.name, row.peer.name, row.err)
				continue
			}
			row.rounds = append(row.rounds, t.measure.values(u))
		}
	}
	return nil
}

// row returns the row of a peer, nil if the table has none.
func (t *table) row(peer string) *row {
	i := slices.IndexFunc(t.rows, func(r *row) bool { return r.peer.name == peer })
	if i < 0 {
		return nil
	}
	return t.rows[i]
}

// why is the error in a word or two.
func (r *row) why() string {
	if errors.Is(r.err, errNotInstalled) {
		return errNotInstalled.Error()
	}
	return "failed"
}

// errNotInstalled is wrapped by the error of a peer whose program is not on this machine.
var errNotInstalled = errors.New("not installed")
