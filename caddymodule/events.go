package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxViewers     = 16               // that events are sent to at a time
	refresh        = time.Second      // between two events
	heartbeat      = 15 * time.Second // of silence, after which something is sent all the same
	viewerPatience = 10 * time.Second // that a write to a viewer may take
)

// cursor is where a page is: the last change that it shows, and of which journal.
type cursor struct {
	epoch  string
	change uint64
}

// String returns the form that parseCursor reads.
func (c cursor) String() string { return fmt.Sprintf("%s.%d", c.epoch, c.change) }

func parseCursor(s string) cursor {
	epoch, digits, _ := strings.Cut(s, ".")
	change, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return cursor{}
	}
	return cursor{epoch, change}
}

// events sends a page what changes, as server-sent events. Nothing waits for a viewer: each looks at the
// journal once a second, and one that does not read what it is sent is dropped.
func (d *Dashboard) events(w http.ResponseWriter, r *http.Request) {
	j := d.journal
	select {
	case j.viewers <- struct{}{}:
		defer func() { <-j.viewers }()
	default:
		http.Error(w, fmt.Sprintf("sandboxallow dashboard: %d others are looking", maxViewers), http.StatusServiceUnavailable)
		return
	}
	from := parseCursor(r.URL.Query().Get("since"))
	if id := r.Header.Get("Last-Event-ID"); id != "" { // of a browser that comes again
		from = parseCursor(id)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	s := &eventStream{w: w, rc: http.NewResponseController(w), last: from.change}
	if from.epoch != "" && from.epoch != j.epoch {
		s.send("event: restart\ndata: \n\n") // the page is of another process: its past is not ours
		return
	}
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		if err := s.update(d); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-d.serving.Done():
			return
		}
	}
}

// eventStream is the connection to a viewer.
type eventStream struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	last uint64 // change that has been sent
	sent time.Time
	now  []byte // what was sent last of that which has no history
	hash string // of the policies that hints were made by
}

// update sends what has changed, if anything has.
func (s *eventStream) update(d *Dashboard) error {
	v := d.view(s.last)
	now, err := json.Marshal([]any{v.Totals, v.Tunnels, v.InForce})
	if err != nil {
		return err
	}
	to := parseCursor(v.Cursor)
	if to.change == s.last && bytes.Equal(now, s.now) {
		if time.Since(s.sent) < heartbeat {
			return nil
		}
		return s.send(":\n\n")
	}
	if s.hash != "" && s.hash != v.InForce.Hash {
		v.Clients = d.view(0).Clients // the hints of all
	}
	s.last, s.now, s.hash = to.change, now, v.InForce.Hash
	data, err := json.Marshal(v) // in one line
	if err != nil {
		return err
	}
	return s.send(fmt.Sprintf("id: %s\ndata: %s\n\n", v.Cursor, data))
}

func (s *eventStream) send(text string) error {
	s.sent = time.Now()
	s.rc.SetWriteDeadline(s.sent.Add(viewerPatience)) // not every ResponseWriter can
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}
