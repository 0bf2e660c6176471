package upstream

import (
	"context"
	"sync/atomic"
	"time"
)

// maxBeside bounds the attempts of the process that run beside another for the same connection: what shares out
// the descriptors counts one for each connection, and whoever answers for a name can make all attempts last.
const maxBeside = 32

var beside atomic.Int64

// race makes n attempts, each one delay after the one before or as soon as that
// one has failed, and returns the first success: the staggered start of RFC 8305
// §5. The first has gone on for a while, of which only head is left of its delay.
// The others are cancelled, and what they achieve all the same is given to
// discard. All attempts must end when their context does. If none succeeds the
// error is an attemptErrors; if there is but one attempt it is that one's.
func race[T any](ctx context.Context, n int, head, delay time.Duration, attempt func(ctx context.Context, i int) (T, error), discard func(T)) (T, error) {
	if n == 1 {
		return attempt(ctx, 0)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	defer close(over)

	type outcome struct {
		value T
		err   error
	}
	outcomes := make(chan outcome)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	started, running := 0, 0
	var stops []context.CancelFunc // of attempts, the oldest first
	start := func() {
		if started == n || started > 0 && ctx.Err() != nil { // the first says why it fails
			return
		}
		extra := running > 0
		if extra && beside.Add(1) > maxBeside {
			beside.Add(-1)
			if len(stops) > 0 {
				stops[0]() // then the next has its descriptor
				stops = stops[1:]
			}
			timer.Reset(delay)
			return
		}
		ctx, stop := context.WithCancel(ctx)
		stops = append(stops, stop)
		i := started
		started++
		running++
		timer.Reset(delay)
		go func() {
			v, err := attempt(ctx, i)
			if extra {
				beside.Add(-1)
			}
			select {
			case outcomes <- outcome{v, err}:
			case <-over:
				if err == nil {
					discard(v)
				}
			}
		}()
	}

	var failed attemptErrors
	start()
	timer.Reset(head)
	for {
		select {
		case o := <-outcomes:
			if o.err == nil {
				return o.value, nil
			}
			running--
			failed = append(failed, o.err)
			if start(); running == 0 {
				var none T
				return none, failed
			}
		case <-timer.C:
			start()
		}
	}
}
