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
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// Retry sets how often, and when, a call without a reply is made again. A field of 0 takes
// the default.
type Retry struct {
	Max     int           // attempts after the first one. Default 5
	Delay   time.Duration // from one attempt to the next. Default 1 s
	Backoff float64       // factor by which the delay grows, from the third attempt on. Default 1.5
}

// WithRetry makes a call again, up to r.Max times, if the worker was unreachable or overloaded, or
// did not reply within the limit of the call. The limit applies to each attempt, the context to all
// of them together. After any other reply or error the call is not made again. In a dynamic group a
// later attempt may reach a new incarnation of the worker. If the last attempt fails in such a way
// too, the error of the call wraps a *RetryError. It matches ErrConfig if r is invalid.
//
// All attempts have the same key. A function that is served WithOnce therefore does not run again
// for a later attempt; any other function may. A call of a function served WithOnce fails with
// ErrEvicted if the function has run, or may have run, and the worker has not kept the reply. This
// happens if a reply was lost and, before the next attempt, more replies followed than
// Limits.MaxRemembered or Limits.RememberedBytes of the worker allow. It also happens if keys of
// later calls filled Limits.KeyBytes of the worker before an attempt arrived.
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
	return func(o *callOptions) { o.retry, o.err = &r, errtext.Join(o.err, err) }
}

func (r Retry) check() error {
	switch {
	case r.Max < 0:
		return &ConfigError{Field: "Retry.Max", Value: r.Max}
	case r.Delay < 0:
		return &ConfigError{Field: "Retry.Delay", Value: r.Delay}
	case r.Backoff != 0 && !(r.Backoff >= 1):
		return &ConfigError{Field: "Retry.Backoff", Value: r.Backoff, Min: 1}
	}
	return nil
}

// RetryError is the error of a call of which all attempts have failed.
type RetryError struct {
	Max int   // attempts after the first one
	Err error // of the last one
}

func (e *RetryError) Error() string {
	return fmt.Sprintf("no success in %d attempts: %s", e.Max+1, causeText(e.Err))
}

// causeText returns the text of err, without the operation, the function and the worker if err is an
// *Error.
func causeText(err error) string {
	if e, ok := err.(*Error); ok {
		return errorText(e.Err)
	}
	return errorText(err)
}

// Unwrap returns the error of the last attempt.
func (e *RetryError) Unwrap() error { return e.Err }

// WithIdempotencyKey gives a call a key. A function that is served WithOnce runs once for all calls
// made by this worker with the same key, as long as the called worker remembers the key: while it
// keeps the reply, which may be long, and after that for 1 to 1.5 times its Limits.RetryWindow since
// the last use. So a key must not be used again for another call. The attempts of a call WithRetry
// have this key, too. The key has 1 to 1024 bytes; the error of the call matches ErrConfig
// otherwise.
//
// A worker holds at most about Limits.KeyBytes / 64 keys of each caller whose replies it does not
// keep: by default a sustained rate of some 11,600 new keys a second. The error of a call beyond
// that matches ErrOverloaded.
func WithIdempotencyKey(key string) CallOption {
	return func(o *callOptions) {
		if key == "" || len(key) > wire.MaxName {
			o.err = errtext.Join(o.err, fmt.Errorf("%w: a key of %d bytes", ErrConfig, len(key)))
		}
		o.key = "u" + key
	}
}

// settings returns the settings that the options of the call make. The caller uses the fields retry
// and place, which apply to all attempts of the call together. It returns the zero value if there
// are no options, or if one is invalid: the single attempt then fails with the error of that
// option.
func (t *target) settings() callOptions {
	if len(t.opts) == 0 {
		return callOptions{}
	}
	o := callOptions{}
	for _, set := range t.opts {
		set(&o)
	}
	if o.err != nil {
		return callOptions{}
	}
	return o
}

// callWithRetry makes the call t, and makes it again with the same key while its error is retryable
// (see isRetryable), r allows another attempt and ctx has not ended. It decodes the reply to the
// value to which result points, and returns the streams on which the tensors of the result are
// valid. The memory of args is free when it returns. The error is an *Error; if no attempt is left,
// it wraps a *RetryError.
func (a *Agent) callWithRetry(ctx context.Context, r *Retry, t target, result, args any) ([]device.Stream, error) {
	o, err := a.callOptions(t)
	if err != nil {
		return nil, t.wrapError(err)
	}
	if o.key == "" {
		number := a.retries.begin()
		defer a.retries.end(number)
		t.opts = append(t.opts[:len(t.opts):len(t.opts)], func(o *callOptions) { o.number = number })
	}
	between := &call{to: t.to, typ: t.typ, name: t.name, limit: o.limit}
	for k := 0; ; k++ {
		between.begun = time.Now()
		streams, err := a.callOnce(ctx, t, result, args)
		if err == nil || ctx.Err() != nil || !isRetryable(err) {
			return streams, err
		}
		if k == r.Max {
			return nil, t.wrapError(&RetryError{r.Max, err})
		}
		a.log.Debug("call is made again", "function", displayName(t.typ, t.name), "worker", string(t.to), "attempt", k+1, "error", err)
		delay := float64(r.Delay) * math.Pow(r.Backoff, float64(max(k-1, 0)))
		next := between.begun.Add(time.Duration(min(delay, float64(wire.MaxTimeout))))
		if stop := a.waitForRetry(ctx, between, next); stop != nil {
			return nil, t.wrapError(errtext.New(fmt.Sprintf("%v, while waiting to retry after: %s", stop, causeText(err)), stop, err))
		}
	}
}

// retryTracker numbers the calls WithRetry that have no key of the application, and tracks which of
// them have ended.
type retryTracker struct {
	mu    sync.Mutex
	last  uint64 // number of the latest call
	ended uint64 // all calls up to this number have ended
	open  map[uint64]struct{}
}

// begin returns a new number for a call, which counts as open until end is called with this number.
// The caller must call end after the last attempt.
func (c *retryTracker) begin() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[uint64]struct{}{}
	}
	c.last++
	c.open[c.last] = struct{}{}
	return c.last
}

// end marks the call with the given number as ended. If this was the oldest open call, end advances
// c.ended to the number before the oldest call that is still open, or to c.last if none is.
func (c *retryTracker) end(number uint64) {
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

// appendKey appends to dst the key of the call with the given number, and returns the extended
// slice. The key also contains the number up to which all calls have ended, so that the worker can
// forget their keys.
func (c *retryTracker) appendKey(dst []byte, number uint64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wire.AppendKey(dst, number, c.ended)
}

// isRetryable reports whether a call that failed with err may succeed later: if the worker was
// overloaded or unreachable, or did not reply in time. Other errors with which the worker
// replied, and a rejected pipe, are final.
func isRetryable(err error) bool {
	if errors.Is(err, ErrOverloaded) {
		return true
	}
	var remote *RemoteError
	if errors.As(err, &remote) || errors.Is(err, ErrRefused) {
		return false
	}
	return errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable)
}

// waitForRetry blocks until the time given by then, at which the call c is made again, and returns
// nil. If ctx ends first, it returns the cause of ctx; if the agent is closed first, ErrClosed.
// During the wait the call is listed for introspection, and a handler that makes the call has no
// slot.
func (a *Agent) waitForRetry(ctx context.Context, c *call, then time.Time) error {
	defer beginWait(ctx)()
	defer a.outsideCalls.add(c, CallRetrying)()
	t := time.NewTimer(time.Until(then))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctxerr.Cause(ctx)
	case <-a.base.Done():
		return ErrClosed
	}
}

// retryAsync makes the call t with retries, by callWithRetry, on a new goroutine. It returns at
// once, with the future that the result or the error completes. The memory of args is in use until
// the future is done. Cancelling the future ends the attempt in progress; the cancellation returns
// when the memory of args and that of t.dst are free.
func retryAsync[R any](ctx context.Context, a *Agent, r *Retry, t target, args any) *Future[R] {
	ctx, cancel := context.WithCancelCause(ctx)
	t.argsLock = chanmutex.New()
	cancelled := &atomic.Bool{}
	onCancel := func(cause error) {
		cancelled.Store(true)
		cancel(cause)
		t.argsLock.Lock() // from then on no attempt uses the arguments
		defer t.argsLock.Unlock()
		t.dst.end(cause)
	}
	f := future.NewWith[R](future.Options{Recall: onCancel, OnPanic: a.onPanic, Activity: &a.activity, Devices: a.futureDevices()})
	// The call ends when the agent is closed. Close does not wait for this goroutine: a
	// function of the application that runs here may have called it.
	go func() {
		defer cancel(nil)
		var result R
		var streams []device.Stream
		err := t.wrapError(errGoexitWaiting) // if a function that runs here ends the goroutine
		defer func() {
			switch {
			case err == nil:
				_ = f.SetOn(result, streams...) // an error of this becomes that of the future
			case cancelled.Load(): // the future fails as cancelled
			default:
				_ = f.Fail(err)
			}
		}()
		err = catchPanic(func() (err error) {
			streams, err = a.callWithRetry(ctx, r, t, &result, args)
			return err
		})
	}()
	return f
}
