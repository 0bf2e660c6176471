package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// memory is what all processes of a server hold.
type memory struct {
	rss         float64 // bytes; pages that several have count for each
	descriptors float64
}

// memory reads it from /proc.
func (p *process) memory() (memory, error) {
	pids, err := group(p.cmd.Process.Pid)
	if err != nil {
		return memory{}, err
	}
	if len(pids) == 0 {
		return memory{}, fmt.Errorf("the process has ended: %s", p.lastWords())
	}
	var m memory
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/", pid)
		statm, err := os.ReadFile(dir + "statm")
		if err != nil {
			return memory{}, err
		}
		f := bytes.Fields(statm) // size, resident, and so on, in pages
		if len(f) < 2 {
			return memory{}, fmt.Errorf("%sstatm: %q", dir, statm)
		}
		pages, err := strconv.ParseFloat(string(f[1]), 64)
		if err != nil {
			return memory{}, err
		}
		m.rss += pages * float64(os.Getpagesize())
		fds, err := os.ReadDir(dir + "fd")
		if err != nil {
			return memory{}, err
		}
		m.descriptors += float64(len(fds))
	}
	return m, nil
}
