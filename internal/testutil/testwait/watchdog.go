package testwait

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"
)

// TestLimit bounds a test that usually takes some seconds: up to 8 under the race detector on a
// busy machine.
const TestLimit = time.Minute

// panicAfter is the number of limits after which the process panics, if the test has not ended
// after the closers were called. It leaves time for one or two calls of [Finish].
const panicAfter = 3

// Watchdog fails a test that exceeds a time limit, and then closes the connections and listeners of the
// test, so that blocked calls return. Its methods may be called concurrently.
type Watchdog struct {
	t       testing.TB
	limit   time.Duration
	expired context.Context // ends at the limit
	expire  context.CancelFunc

	mu      sync.Mutex
	over    bool // the test has ended
	closers []io.Closer
	timer   *time.Timer
}

// Watch starts a Watchdog, which fails t if t is not over after limit, and returns it. If limit is
// 0, [TestLimit] applies. The Watchdog stops at the end of t, after the cleanups that t registers
// later.
func Watch(t testing.TB, limit time.Duration) *Watchdog {
	w := &Watchdog{t: t, limit: cmp.Or(limit, TestLimit)}
	w.expired, w.expire = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.onLimit)
	t.Cleanup(w.stop)
	return w
}

// CloseOnTimeout makes the Watchdog close c when the test exceeds its limit; if it has done so
// already, c is closed now, on another goroutine. The Watchdog retains c. The test may close c too,
// so a second Close must be harmless.
func (w *Watchdog) CloseOnTimeout(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.expired.Err() != nil {
		go c.Close()
		return
	}
	w.closers = append(w.closers, c)
}

// Context returns a context, derived from ctx, that ends when ctx ends or when the test exceeds its
// limit. The caller must call free when it does not use the context any more, which ends the
// context.
func (w *Watchdog) Context(ctx context.Context) (bound context.Context, free func()) {
	bound, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(w.expired, cancel)
	return bound, func() { unlink(); cancel() }
}

// onLimit marks the test as failed, ends the contexts of Context, and calls Close of each closer on
// a goroutine of its own, because a broken Close may block too. It then starts a timer for
// panicIfRunning. If the test has ended, it does nothing. It takes w.mu.
func (w *Watchdog) onLimit() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.t.Errorf("not over after %v: a call stays blocked; closing all that the test has opened", w.limit)
	w.expire()
	for _, c := range w.closers {
		go c.Close()
	}
	w.timer = time.AfterFunc((panicAfter-1)*w.limit, w.panicIfRunning)
}

// panicIfRunning panics if the test has not ended, which prints the name of the test and the stacks
// of all goroutines. A single test cannot be ended from outside, and the timeout of package testing
// would come much later.
func (w *Watchdog) panicIfRunning() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		panic(fmt.Sprintf("%s is stuck, and closing all that it has opened did not help", w.t.Name()))
	}
}

func (w *Watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	w.expire()
}
