package main

import (
	"math"
	"time"
)

// cpuPer is the CPU time for one unit in seconds, NaN where there is no server.
func (u use) cpuPer() float64 {
	if u.cpu == 0 {
		return math.NaN()
	}
	return u.cpu.Seconds() / u.done
}

func (u use) perSecond() float64 { return u.done / u.wall.Seconds() }

// percentile is the nearest-rank percentile p, 0 to 1, of the latencies in seconds; NaN if there are none.
func (u use) percentile(p float64) float64 {
	if len(u.latencies) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(p * float64(len(u.latencies))))
	return time.Duration(u.latencies[max(rank, 1)-1]).Seconds()
}
