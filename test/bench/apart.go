package main

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// halves are the processors of this process, divided between servers and clients: then what there is a second is what
// a server can do, not what a client that takes as much leaves it. The zero pointer divides nothing.
type halves struct {
	all, servers, clients unix.CPUSet
}

// divide divides the processors, of which one alone is for both. Programs inherit the half of the thread that starts
// them, so this goroutine keeps to its thread until join.
func divide() (*halves, error) {
	h := new(halves)
	if err := unix.SchedGetaffinity(0, &h.all); err != nil {
		return nil, os.NewSyscallError("sched_getaffinity", err)
	}
	h.servers, h.clients = h.all, h.all
	if n := h.all.Count(); n > 1 {
		h.clients.Zero()
		for cpu := 0; h.clients.Count() < n/2; cpu++ {
			if h.servers.IsSet(cpu) {
				h.servers.Clear(cpu)
				h.clients.Set(cpu)
			}
		}
	}
	runtime.LockOSThread()
	return h, nil
}

// forServers has the programs that are started from now on run on the half of the servers.
func (h *halves) forServers() error {
	if h == nil {
		return nil
	}
	return keepTo(&h.servers)
}

// forClients is the same for clients.
func (h *halves) forClients() error {
	if h == nil {
		return nil
	}
	return keepTo(&h.clients)
}

// join undoes divide.
func (h *halves) join() {
	if keepTo(&h.all) == nil {
		runtime.UnlockOSThread() // else the thread ends with the goroutine
	}
}

func keepTo(set *unix.CPUSet) error {
	return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, set))
}
