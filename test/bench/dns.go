package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

const (
	dnsClients  = 8  // sockets
	dnsInFlight = 64 // questions of all of them together that wait for a reply

	// dnsPatience is how long a reply may take. On a loopback address none is lost unless the server loses it.
	dnsPatience = 5 * time.Second
)

// resolving is the cost of a question over UDP, as dnsperf asks it.
func resolving(name, against string) measure {
	return measure{
		name: name,
		text: fmt.Sprintf("dnsperf: UDP, %d questions in flight on %d sockets, A with EDNS. Of ten names five are below a zone of the "+
			"rules, three are single names of them, two are denied. Before that %d replies are checked one by one. The server has one "+
			"half of the processors and dnsperf the other: questions/s are what the server can answer, or dnsperf ask if that is less.",
			dnsInFlight, dnsClients, dnsProof),
		against: against,
		columns: []column{
			{"CPU per question", microseconds, true},
			{"questions/s", count, true},
			{"RSS", megabytes, false},
		},
		take: func(ctx context.Context, s *server, p pace) ([]float64, error) {
			if _, err := dnsperf(ctx, s, p.warm); err != nil {
				return nil, err
			}
			before, err := s.process.cpu()
			if err != nil {
				return nil, err
			}
			got, err := dnsperf(ctx, s, p.window)
			if err != nil {
				return nil, err
			}
			after, err := s.process.cpu()
			if err != nil {
				return nil, err
			}
			m, err := s.process.memory()
			if err != nil {
				return nil, err
			}
			return []float64{(after - before).Seconds() / got.completed, got.perSecond, m.rss}, nil
		},
	}
}

// answered is what dnsperf has to say.
type answered struct {
	completed float64
	perSecond float64
}

// dnsperfLeast is what dnsperf needs on a busy machine to have its threads ask anything at all.
const dnsperfLeast = 300 * time.Millisecond

// dnsperf asks a server for as long as d, or dnsperfLeast.
func dnsperf(ctx context.Context, s *server, d time.Duration) (answered, error) {
	path, err := dnsperfProgram.find()
	if err != nil {
		return answered{}, err
	}
	cmd := exec.CommandContext(ctx, path, "-W", "-s", s.addr.Addr().String(), "-p", strconv.Itoa(int(s.addr.Port())),
		"-d", s.questions, "-l", strconv.FormatFloat(max(d, dnsperfLeast).Seconds(), 'f', 3, 64), "-e",
		"-c", strconv.Itoa(dnsClients), "-q", strconv.Itoa(dnsInFlight), "-t", strconv.Itoa(int(dnsPatience.Seconds())))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return answered{}, fmt.Errorf("dnsperf: %w: %s", err, bytes.TrimSpace(out))
	}
	return readDNSPerf(out, s.answers)
}

var dnsperfLine = regexp.MustCompile(`(?m)^\s*(Queries sent|Queries completed|Queries per second|Response codes):\s+(.*)$`)
var dnsperfCode = regexp.MustCompile(`([A-Z]+) (\d+) \(`)

// readDNSPerf reads what dnsperf has printed. A reply that is lost is an error, and so is it if the answers of each
// kind do not come in their shares: questions are asked by turns.
func readDNSPerf(out []byte, shares map[string]float64) (answered, error) {
	fields := make(map[string]string)
	for _, m := range dnsperfLine.FindAllSubmatch(out, -1) {
		fields[string(m[1])] = string(m[2])
	}
	number := func(field string) float64 {
		var n float64
		if _, err := fmt.Sscan(fields[field], &n); err != nil {
			return math.NaN()
		}
		return n
	}
	got := answered{number("Queries completed"), number("Queries per second")}
	if sent := number("Queries sent"); got.completed != sent || !(sent > 0) || !(got.perSecond > 0) {
		return answered{}, fmt.Errorf("dnsperf: %s of %s questions answered", fields["Queries completed"], fields["Queries sent"])
	}
	codes := make(map[string]float64)
	for _, m := range dnsperfCode.FindAllStringSubmatch(fields["Response codes"], -1) {
		codes[m[1]], _ = strconv.ParseFloat(m[2], 64)
	}
	for code := range codes {
		if shares[code] == 0 {
			return answered{}, fmt.Errorf("dnsperf: got answers %s, want none of %s", fields["Response codes"], code)
		}
	}
	for code, share := range shares {
		if math.Abs(codes[code]-share*got.completed) > 10+got.completed/100 {
			return answered{}, fmt.Errorf("dnsperf: got answers %s, want %.0f %% %s", fields["Response codes"], share*100, code)
		}
	}
	return got, nil
}
