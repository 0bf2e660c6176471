package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cpu returns the CPU time, user and system, that the process and its children have had so far. It is the
// kernel's account of each process in ns, threads that have ended included; utime and stime in
// /proc/PID/stat are the same account in steps of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	pids, err := group(p.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	if len(pids) == 0 {
		return 0, fmt.Errorf("the process has ended: %s", p.lastWords())
	}
	var sum time.Duration
	for _, pid := range pids {
		t, err := cpuOf(pid)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("process %d has ended while it was measured", pid)
		}
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// cpuOf reads the CPU clock of a process, whose number is made as clock_getcpuclockid(3) makes it.
func cpuOf(pid int) (time.Duration, error) {
	const clockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|clockSched), &ts); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(ts.Nano()), nil
}

// group lists the processes of a process group. Not by /proc/PID/task/TID/children, which many kernels
// are built without.
func group(pgid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		if g, ok := groupIn(stat); ok && g == pgid {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// groupIn returns the process group in a /proc/PID/stat, false for a zombie. The fields are counted from the
// last parenthesis: before it stands the name of the program, with whatever is in it.
func groupIn(stat []byte) (pgid int, ok bool) {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 3 || string(f[0]) == "Z" {
		return 0, false
	}
	pgid, err := strconv.Atoi(string(f[2]))
	return pgid, err == nil
}
