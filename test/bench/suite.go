package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"
)

// suite is peers that are measured in turns.
type suite struct {
	name     string
	peers    []peer
	measures []measure

	// apart has servers and clients run on different processors. It is not for peers that are started anew.
	apart bool

	// anew has the peers started for each figure, one at a time, and not all of them at the beginning: for what a
	// server that has had a load before would answer differently.
	anew bool
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
	addr      netip.AddrPort // where clients connect
	version   string
	process   *process           // nil where nothing stands between the client and the upstream
	proxyTo   uint16             // the upstream's port for a forward proxy, 0 for what is none
	postgres  bool               // TLS is asked for as by PostgreSQL
	webPort   uint16             // the upstream's for plain HTTP, which clients name
	refuses   bool               // clients ask for names that no rule admits
	policy    *setting           // of our gateway, whose policy can be changed
	changes   bool               // its policy is changed each second while it is measured
	questions string             // of a DNS server: the file with what it is asked
	answers   map[string]float64 // of a DNS server: what part of the answers has which code
	functions []string           // of none that runs: the benchmarks of each column, in Go; none if empty
}

// measure is what is to be known of each peer of a suite.
type measure struct {
	name    string
	text    string // how it is done, for the results
	against string // the peer that ratios are relative to; none if empty
	columns []column

	// take returns the values of the columns; NaN where there is none. An error means that the server did not do
	// its job: nothing is forgiven, for what fails is often cheap.
	take func(context.Context, *server, pace) ([]float64, error)
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
	anew   int           // rounds for which servers are started
	warm   time.Duration // under load before each window
	window time.Duration
}

var (
	full  = pace{rounds: 5, anew: 2, warm: 150 * time.Millisecond, window: 600 * time.Millisecond}
	brief = pace{rounds: 2, anew: 1, warm: 50 * time.Millisecond, window: 200 * time.Millisecond}
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
	var h *halves
	if s.apart {
		var err error
		if h, err = divide(); err != nil {
			return nil, err
		}
		defer h.join()
	}
	if err := h.forServers(); err != nil {
		return nil, err
	}
	servers := make([]*server, len(s.peers))
	failed := make([]error, len(s.peers))
	for i, peer := range s.peers {
		if s.anew {
			break
		}
		fmt.Fprintf(os.Stderr, "bench: %s: starting %s\n", s.name, peer.name)
		servers[i], failed[i] = peer.start(ctx)
		defer servers[i].stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if failed[i] != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", s.name, peer.name, failed[i])
		}
	}
	if err := h.forClients(); err != nil {
		return nil, err
	}
	if s.anew {
		p.rounds = p.anew
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
			if servers[i] != nil {
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

// stop ends a server that runs.
func (s *server) stop() {
	if s != nil && s.process != nil {
		s.process.stop()
	}
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
			values, err := t.measure.of(ctx, servers[i], row, p)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				row.err = fmt.Errorf("round %d: %w", round+1, err)
				fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", t.measure.name, row.peer.name, row.err)
				continue
			}
			row.rounds = append(row.rounds, values)
		}
	}
	return nil
}

// of takes the measure from a server, or from one that is started for it.
func (m *measure) of(ctx context.Context, s *server, r *row, p pace) ([]float64, error) {
	if s != nil {
		return m.take(ctx, s, p)
	}
	s, err := r.peer.start(ctx)
	defer s.stop()
	if err != nil {
		return nil, err
	}
	r.version = s.version
	return m.take(ctx, s, p)
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
