package patience

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"
)

// TestLimit is how long a whole test may take that is over in some seconds: the
// slowest are seen to take 8 under the race detector on a busy machine.
const TestLimit = time.Minute

// lastResort is after how many limits a test that no closing unblocks takes the
// whole process with it. It leaves time for a [Finish] or two.
const lastResort = 3

// Watchdog fails a test that is not over in time, and closes what the test has
// opened, so that its calls return.
type Watchdog struct {
	t     testing.TB
	limit time.Duration
	late  context.Context // ends when the test is late
	bark  context.CancelFunc

	mu      sync.Mutex
	over    bool
	guarded []io.Closer
	timer   *time.Timer
}

// Watch watches t from now until its cleanups have run; call it before other
// things register theirs. The zero limit stands for [TestLimit].
func Watch(t testing.TB, limit time.Duration) *Watchdog {
	w := &Watchdog{t: t, limit: cmp.Or(limit, TestLimit)}
	w.late, w.bark = context.WithCancel(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.limit, w.onLate)
	t.Cleanup(w.stop)
	return w
}

// Guard has c closed when the test is late, beside whatever else closes it.
func (w *Watchdog) Guard(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late.Err() != nil {
		go c.Close()
		return
	}
	w.guarded = append(w.guarded, c)
}

// Bound returns a context for one call that also ends when the test is late.
// Call free after the call.
func (w *Watchdog) Bound(ctx context.Context) (bound context.Context, free func()) {
	bound, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(w.late, cancel)
	return bound, func() { unlink(); cancel() }
}

// onLate closes on the side: a broken Close may block as well.
func (w *Watchdog) onLate() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.t.Errorf("not over after %v: a call stays blocked; closing all that the test has opened", w.limit)
	w.bark()
	for _, c := range w.guarded {
		go c.Close()
	}
	w.timer = time.AfterFunc((lastResort-1)*w.limit, w.onStuck)
}

// onStuck names the test and shows where it is stuck. No test can be ended
// from outside, and the timeout of the whole run would come much later.
func (w *Watchdog) onStuck() {
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
	w.bark()
}
