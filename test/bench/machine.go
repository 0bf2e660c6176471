package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is where the figures are from.
type machine struct {
	cores  int
	cpu    string
	kernel string
	memory string
}

func thisMachine() machine {
	m := machine{cores: runtime.NumCPU(), cpu: "unknown", kernel: "unknown", memory: "unknown"}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		m.kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:]) + " " +
			unix.ByteSliceToString(name.Machine[:])
	}
	if model := fieldOf("/proc/cpuinfo", "model name"); model != "" {
		m.cpu = model
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(fieldOf("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		m.memory = fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20))
	}
	return m
}

// fieldOf returns the value of the first line `name: value` of a file.
func fieldOf(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// crowd is the share of the CPU time, 0 to 1, that was in use while nothing was measured: what others do.
type crowd float64

// tolerated is what a machine does of its own accord.
const tolerated crowd = 0.1

func (c crowd) String() string {
	text := fmt.Sprintf("%.0f %% of the CPU in use before the rounds", c*100)
	if c > tolerated {
		text += ", **busy: do not trust the figures**"
	}
	return text
}

// watchCrowd looks for as long as d.
func watchCrowd(d time.Duration) crowd {
	used, all := jiffies()
	time.Sleep(d)
	used2, all2 := jiffies()
	if all2 <= all {
		return 0
	}
	return crowd(used2-used) / crowd(all2-all)
}

// jiffies reads the CPU time of the machine since it was started, all of it and what was not idle, in units
// of its own. What the hypervisor gave to others counts as used.
func jiffies() (used, all float64) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	// user nice system idle iowait irq softirq steal; guest time, which follows, is part of user
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, 0
	}
	for i, field := range fields[1:9] {
		n, _ := strconv.ParseFloat(field, 64)
		all += n
		if i != 3 && i != 4 {
			used += n
		}
	}
	return used, all
}
