package caddymodule

import (
	"slices"
	"sync"
)

// running are the apps that have been started and not stopped. Around a reload these are two: Caddy starts
// the new one first, and stops it again if another app of the new configuration fails.
var running apps

type apps struct {
	mu   sync.Mutex
	apps []*App
}

func (r *apps) add(a *App) {
	r.mu.Lock()
	r.apps = append(r.apps, a)
	r.mu.Unlock()
	open.recheck(a)
}

func (r *apps) remove(a *App) {
	r.mu.Lock()
	r.apps = slices.DeleteFunc(r.apps, func(b *App) bool { return a == b })
	r.mu.Unlock()
	if judge := r.judge(); judge != nil {
		open.recheck(judge)
	} else {
		open.revokeAll()
	}
}

// judge returns the app whose policy holds for everything that is open, nil if none runs.
func (r *apps) judge() *App {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.apps) == 0 {
		return nil
	}
	return r.apps[len(r.apps)-1]
}
