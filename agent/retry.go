package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/turn"
)

// Retry says how often a call that got no answer is made again, and when. A field of 0
// takes the default.
type Retry struct {
	Max     int           // attempts after the first one. Default 5
	Delay   time.Duration // from one attempt to the next. Default 1 s
	Backoff float64       // by which the delay grows from the third attempt on. Default 1.5
}

// WithRetry makes a call again that found the worker unreachable, was not answered
// within its limit, or was one too many for the worker. Each attempt has the call's
// limit of its own; the context bounds them all. A call that is answered, with an error
// too, is not made again, nor is one by an agent that is closed or to a worker that has
// restarted. When all attempts are over the error is a *RetryError.
//
// The function may run more than once, unless it is served with Once: the attempts have
// the same key. The error of the call then matches ErrEvicted if the function has run, or
// may have run, and its answer is not kept: an attempt was answered, the answer was lost,
// and more answers came before the next attempt than Limits.Remembered or
// Limits.RememberedBytes of the worker allow. If no attempt has arrived, the function runs,
// unless Limits.KeyBytes of keys of later calls have come before. The error of the call
// matches ErrConfig if r is invalid.
func WithRetry(r Retry) CallOption {
	err := r.check()
	if r.Max == 0 {
		r.Max = 5
	}
	if r.Delay == 0 {
		r.Delay = time.Second
	}
	if r.Backoff == 0 {
		r.Backoff = 1.5
	}
	return func(o *callOptions) { o.retry, o.err = &r, errors.Join(o.err, err) }
}

func (r Retry) check() error {
	switch {
	case r.Max < 0:
		return fmt.Errorf("%w: maxRetries cannot be negative", ErrConfig)
	case r.Delay < 0:
		return fmt.Errorf("%w: rpcRetryDuration cannot be negative", ErrConfig)
	case r.Backoff != 0 && !(r.Backoff >= 1):
		return fmt.Errorf("%w: maxRetries cannot be exponentially decaying", ErrConfig)
	}
	return nil
}

// gap is the time from attempt k, counted from 0, to the next one.
func (r *Retry) gap(k int) time.Duration {
	d := float64(r.Delay) * math.Pow(r.Backoff, float64(max(k-1, 0)))
	return time.Duration(min(d, float64(maxLeft)))
}

// RetryError says that all attempts of a call have failed.
type RetryError struct {
	Max int   // attempts after the first one
	Err error // of the last one
}

func (e *RetryError) Error() string {
	return fmt.Sprintf("The RPC has not succeeded after the specified number of max retries (%d).: %v", e.Max, e.Err)
}

// Unwrap returns the error of the last attempt.
func (e *RetryError) Unwrap() error { return e.Err }

// Idempotent gives a call a key. A function that is served with Once runs once for all
// calls of this worker that have the same key and come within Limits.RetryWindow of each
// other, a limit of the worker that is called. WithRetry gives a call one that no other
// has, for which there is no such window. The key has 1 to 1024 bytes; the error of the
// call matches ErrConfig otherwise.
//
// A worker admits one new key for each 64 bytes of Limits.KeyBytes within one and a half
// of its Limits.RetryWindow: by default some 11,600 calls with new keys a second, without
// end, from each caller. The error of a call beyond that matches ErrOverloaded.
func Idempotent(key string) CallOption {
	return func(o *callOptions) {
		if key == "" || len(key) > maxName {
			o.err = errors.Join(o.err, fmt.Errorf("%w: a key of %d bytes", ErrConfig, len(key)))
		}
		o.key = "u" + key
	}
}

// retry is what the options say about that, nil for a call that is made once.
func (t *target) retry() *Retry {
	if len(t.opts) == 0 {
		return nil
	}
	o := callOptions{}
	for _, set := range t.opts {
		set(&o)
	}
	if o.err != nil {
		return nil // the only attempt fails with it
	}
	return o.retry
}

// insist makes a call until it is answered. Like attempt it returns the streams of the
// result.
func (a *Agent) insist(ctx context.Context, r *Retry, t target, result, args any) ([]device.Stream, error) {
	o, err := a.options(t)
	if err != nil {
		return nil, t.fault(err)
	}
	if o.key == "" {
		number := a.retried.begin()
		defer a.retried.end(number)
		t.opts = append(t.opts[:len(t.opts):len(t.opts)], func(o *callOptions) { o.number = number })
	}
	between := &call{to: t.to, typ: t.typ, name: t.name, limit: o.limit}
	for k := 0; ; k++ {
		between.begun = time.Now()
		streams, err := a.attempt(ctx, t, result, args)
		if err == nil || ctx.Err() != nil || !unanswered(err) {
			return streams, err
		}
		if k == r.Max {
			return nil, t.fault(&RetryError{r.Max, err})
		}
		a.log.Debug("call is made again", "function", calledName(t.typ, t.name), "worker", string(t.to), "attempt", k+1, "error", err)
		if stop := a.pause(ctx, between, between.begun.Add(r.gap(k))); stop != nil {
			return nil, t.fault(fmt.Errorf("%w: %w", stop, err))
		}
	}
}

// retriedCalls numbers the calls WithRetry that have no key of the application.
type retriedCalls struct {
	mu    sync.Mutex
	last  uint64 // number of the latest call
	ended uint64 // all calls up to this number have ended
	open  map[uint64]struct{}
}

// begin returns the number of a new call.
func (c *retriedCalls) begin() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[uint64]struct{}{}
	}
	c.last++
	c.open[c.last] = struct{}{}
	return c.last
}

// end notes that no further attempt of a call will be made.
func (c *retriedCalls) end(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
	for c.ended < c.last {
		if _, open := c.open[c.ended+1]; open {
			return
		}
		c.ended++
	}
}

// appendKey appends the key of a call to dst.
func (c *retriedCalls) appendKey(dst []byte, number uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return appendKey(dst, number, c.ended)
}

// fault is an error with what is called.
func (t *target) fault(err error) error {
	return &Error{Op: "call", Func: calledName(t.typ, t.name), Worker: string(t.to), Err: err}
}

// unanswered reports whether a call that failed may do better another time.
func unanswered(err error) bool {
	if errors.Is(err, ErrOverloaded) {
		return true
	}
	var remote *RemoteError
	if errors.As(err, &remote) || errors.Is(err, ErrRefused) {
		return false
	}
	return errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable)
}

// pause waits until then, without the slot of a handler. The call c is in no other list
// meanwhile.
func (a *Agent) pause(ctx context.Context, c *call, then time.Time) error {
	defer leaveSlot(ctx)()
	defer a.aside.enter(c, CallRetrying)()
	t := time.NewTimer(time.Until(then))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.base.Done():
		return ErrClosed
	}
}

// insistLater is insist for a call whose result goes to a future.
func insistLater[R any](ctx context.Context, a *Agent, r *Retry, t target, args any) *Future[R] {
	ctx, cancel := context.WithCancelCause(ctx)
	t.using = turn.New()
	recalled := &atomic.Bool{}
	recall := func(cause error) {
		recalled.Store(true)
		cancel(cause)
		t.using.Take() // no attempt begins any more
		defer t.using.Give()
	}
	f := future.NewWith[R](future.Options{Recall: recall, OnPanic: a.onPanic, Activity: &a.activity})
	// An agent that is closed ends it, but Close does not wait: it may be called by what
	// runs here of the application.
	go func() {
		defer cancel(nil)
		var result R
		var streams []device.Stream
		err := t.fault(errDeserted) // if a function that runs here meanwhile ends the goroutine
		defer func() {
			switch {
			case err == nil:
				_ = f.SetOn(result, streams...) // an error is that of the future
			case recalled.Load(): // the future fails as cancelled
			default:
				_ = f.Fail(err)
			}
		}()
		err = guarded(func() (err error) {
			streams, err = a.insist(ctx, r, t, &result, args)
			return err
		})
	}()
	return f
}
