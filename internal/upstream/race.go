package upstream

import (
	"context"
	"time"
)

// race makes n attempts, each one delay after the one before or as soon as that
// one has failed, and returns the first success: the staggered start of RFC 8305
// §5. The others are cancelled, and what they achieve all the same is given to
// discard. All attempts must end when their context does. If none succeeds the
// error is an attemptErrors; if there is but one attempt it is that one's.
func race[T any](ctx context.Context, n int, delay time.Duration, attempt func(ctx context.Context, i int) (T, error), discard func(T)) (T, error) {
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
	start := func() {
		i := started
		started++
		running++
		timer.Reset(delay)
		go func() {
			v, err := attempt(ctx, i)
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
	for {
		select {
		case o := <-outcomes:
			if o.err == nil {
				return o.value, nil
			}
			running--
			failed = append(failed, o.err)
			if started < n && ctx.Err() == nil {
				start()
			} else if running == 0 {
				var none T
				return none, failed
			}
		case <-timer.C:
			if started < n && ctx.Err() == nil {
				start()
			}
		}
	}
}
