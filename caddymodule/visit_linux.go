package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"time"

	"github.com/sandboxallow/sandboxallow/internal/decision"
	"github.com/sandboxallow/sandboxallow/internal/hello"
	"github.com/sandboxallow/sandboxallow/internal/policy"
	"github.com/sandboxallow/sandboxallow/internal/tunnel"
	"github.com/sandboxallow/sandboxallow/internal/upstream"
)

// visit is a connection that came in by an entrance, until it is a tunnel or refused.
//
// It is what Handler does, as steps of an event loop: none waits for anything. Where it would have to, for a name to be
// resolved or a policy to settle, or where there is more to do, for a site, it goes on by App.admit in a goroutine, from
// the decision on or from the dialling. So a step records nothing that admit would record again.
type visit struct {
	*server
	record
	client *tunnel.Client
	held   place

	buf  []byte // what was read, where it came in more than one piece or has to be kept
	want int    // octets without which there is no use in looking again

	name    policy.Name
	set     *policy.Set
	attempt *upstream.Attempt

	placed bool     // held is of a place that was taken
	over   bool     // the client is somebody else's, or closed
	taken  net.Conn // by a site
}

// receive begins with a connection.
func (s *server) receive(c *tunnel.Client) {
	v := &visit{server: s, client: c}
	v.start, v.record.listener = time.Now(), s.listener.Policy
	v.Layer, v.Client, v.Port = decision.TLS, c.RemoteAddr().Addr(), s.port
	defer v.recoverPanic()
	if !open.acquire(s.app.MaxTunnels) {
		v.over = true
		v.close(policy.ReasonLimit, func() {})
		v.later(func() { s.app.denied(&v.record, policy.ReasonLimit, s.app.limitError()) })
		return
	}
	v.placed = true
	v.read()
}

// recoverPanic has a panic end this connection, and only this.
func (v *visit) recoverPanic() {
	if p := recover(); p != nil {
		v.app.panicked("panic in connection handler", p, debug.Stack())
		if v.attempt != nil {
			v.attempt.Close()
		}
		v.leave()
		if v.placed {
			v.held.release()
		}
	}
}

// leave closes the connection without a word, unless it is a tunnel or refused.
func (v *visit) leave() {
	switch {
	case v.taken != nil:
		v.taken.Close()
	case !v.over:
		v.over = true
		v.client.Close()
	default:
		return
	}
	v.held.release()
}

// later has something recorded after this turn of the loop.
func (v *visit) later(record func()) { v.client.Later(func() { v.recording(record) }) }

// recording calls record. What panics there is not the connection, which goes on.
func (v *visit) recording(record func()) {
	defer func() {
		if p := recover(); p != nil {
			v.app.panicked("panic while recording a decision", p, debug.Stack())
		}
	}()
	record()
}

// step makes of a step what a client calls when something has happened, or it is late.
func (v *visit) step(f func(late bool)) func(bool) {
	return func(late bool) {
		defer v.recoverPanic()
		f(late)
	}
}

// read reads what there is of the ClientHello, until the server name is known.
func (v *visit) read() {
	for v.readOnce() {
	}
}

// readOnce reads once. It reports whether there may be more to read now: of what is there already, nobody tells again.
func (v *visit) readOnce() (more bool) {
	b := v.client.Buffer()
	n, err := v.client.Read(b)
	b = b[:max(n, 0)]
	if len(v.buf) > 0 {
		v.buf = append(v.buf, b...)
		b = v.buf
	}
	switch {
	case err == tunnel.ErrNotYet:
		v.readMore()
		return false
	case err == nil && n == 0:
		err = io.EOF
		fallthrough
	case err != nil:
		if err = readError(err, len(b)); errors.Is(err, errSilent) {
			v.leave() // a health check, or a client that changed its mind: nobody was denied
		} else {
			v.deny(helloReason(err), err)
		}
		return false
	case len(b) < v.want:
		return true
	}
	name, need, err := hello.ServerName(b)
	if err == nil && need > 0 {
		v.keep(b)
		v.want = len(b) + need
		return true
	}
	v.Name = string(name)
	if err != nil {
		v.deny(helloReason(err), err)
		return false
	}
	v.decide(b)
	return false
}

// readMore waits for more to read, but not for longer than a client may take.
func (v *visit) readMore() {
	err := v.client.Await(time.Until(v.start.Add(time.Duration(v.app.HelloTimeout))), v.step(func(late bool) {
		if !late {
			v.read()
			return
		}
		v.over = true
		v.close(policy.ReasonHelloTimeout, v.held.release)
		go v.recording(func() { v.app.denied(&v.record, policy.ReasonHelloTimeout, errHelloLate) })
	}))
	if err != nil {
		v.deny(policy.ReasonHelloMalformed, errors.Join(errHelloBroke, err))
	}
}

// keep keeps what was read, which is in the buffer of the loop.
func (v *visit) keep(b []byte) {
	if len(v.buf) == 0 {
		v.buf = bytes.Clone(b)
	}
}

// decide decides on the name that the ClientHello b has.
func (v *visit) decide(b []byte) {
	n, err := policy.ParseName(v.Name)
	if err != nil {
		v.deny(policy.ReasonBadName, err)
		return
	}
	v.set = v.app.store.Set()
	sel := v.set.Select(v.Client, v.record.listener)
	d := sel.Lookup(n, v.Port)
	switch {
	case d.Reason == policy.ReasonNotAllowed: // unless a change is settling, for which files are looked at
		v.wait(b, v.admit)
		return
	case !d.Verdict.Admits():
		v.Name, v.Decision = n.String(), d
		v.refused(d.Reason, func() { v.app.decided(&v.record) })
		return
	case v.app.brokering(n, v.Port) != notBrokered:
		v.wait(b, v.admit)
		return
	}
	if v.attempt = v.app.dialer.Begin(v.client, n, v.Port, sel.Lifts); v.attempt == nil {
		v.wait(b, v.admit)
		return
	}
	v.name, v.Name, v.Decision = n, n.String(), d
	v.connect(b)
}

// connect sends the ClientHello to the upstream once that is connected, and makes the tunnel.
func (v *visit) connect(b []byte) {
	n, err := v.attempt.Offer(b)
	if err == tunnel.ErrNotYet {
		v.keep(b)
		err = v.client.AwaitUpstream(v.attempt.Socket(), v.attempt.Patience(), v.step(func(late bool) {
			if late {
				v.wait(v.buf, v.finish)
			} else {
				v.connect(v.buf)
			}
		}))
		if err == nil {
			return
		}
	}
	if err != nil || n < len(b) {
		v.early = int64(n)
		v.wait(b, v.finish)
		return
	}
	v.early = int64(n)
	v.Upstream = v.attempt.Socket().RemoteAddr()
	v.later(func() { v.app.decided(&v.record) })
	v.over = true
	v.app.tunnel(v.name, v.set, &v.record, v.join, v.attempt.Socket(), v.held.release)
}

// wait goes on where it may wait.
func (v *visit) wait(b []byte, f func()) {
	v.keep(b)
	go func() {
		growStack()
		defer v.recoverPanic()
		f()
	}()
}

// admit does all from the decision on.
func (v *visit) admit() {
	if !v.app.admit(&v.record, v, v.buf, v.held.release) {
		v.leave()
	}
}

// finish does all from the dialling on.
func (v *visit) finish() {
	a := v.attempt
	v.attempt = nil // which closes itself from now on
	up := a.Socket()
	if v.early == 0 {
		var err error
		if up, err = a.Finish(context.Background()); err != nil {
			v.app.denied(&v.record, upstream.Reason(err), err)
			v.refuse(&v.record, upstream.Reason(err), v.buf)
			return
		}
	}
	defer up.Close() // unless it is the tunnel's by then
	v.Upstream = up.RemoteAddr()
	v.app.decided(&v.record)
	if !v.app.passOn(v.name, &v.record, up, v.buf[v.early:]) {
		v.leave()
		return
	}
	v.app.tunnel(v.name, v.set, &v.record, v.join, up, v.held.release)
}

// deny records a denial that is not the policy's, and refuses the client.
func (v *visit) deny(reason policy.Reason, err error) {
	v.refused(reason, func() { v.app.denied(&v.record, reason, err) })
}

// refused refuses the client, and has the denial recorded.
func (v *visit) refused(reason policy.Reason, record func()) {
	v.over, v.buf = true, nil
	v.later(record)
	v.close(reason, v.held.release)
}

// close tells a client why it is refused, and closes the connection, at the end of which closed is called.
func (v *visit) close(reason policy.Reason, closed func()) {
	linger := lingerTime
	if reason == policy.ReasonLimit {
		linger = 0
	}
	v.client.CloseWith(alertRecord(reason), linger, closed)
}

// What follows is a front, for App.admit.

func (v *visit) refuse(_ *record, reason policy.Reason, _ []byte) {
	switch {
	case v.taken != nil:
		refuse(v.taken, reason)
		return
	case v.over: // closed, as it could not be taken: its descriptor is somebody else's by now
		return
	}
	v.over = true
	v.client.Do(func() { v.close(reason, v.held.release) })
}

func (v *visit) ahead() []byte                 { return nil }
func (v *visit) upstream(*tunnel.Socket) error { return nil }

func (v *visit) join(up *tunnel.Socket, o tunnel.Options) (*tunnel.Tunnel, error) {
	v.over = true
	t := v.client.Join(up, o)
	v.client, v.buf, v.attempt, v.set = nil, nil, nil, nil // the tunnel keeps the record, and so the rest
	return t, nil
}

func (v *visit) conn() (c net.Conn, err error) {
	v.over = true
	if c, err = v.client.Conn(); err != nil {
		v.held.release()
	}
	v.taken = c
	return c, err
}
