package future

import "context"

// Wait waits until f is done and returns its value or its error. If ctx ends
// before, it returns the error of ctx, and f stays as it is; f being done wins.
//
// The value may be made by work that is only enqueued on devices, see SetOn. Wait
// makes the streams that ctx names (device.WithStream) wait for it, on each device
// that the value waits for; the host does not wait. For a device without a stream
// in ctx nothing is ordered: use the value on the stream of its buffer, or call
// Order. A [*StreamError] says that a stream could not be ordered; the value can
// still be waited for with another.
func (f *Future[T]) Wait(ctx context.Context) (T, error) {
	var none T
	if !f.IsDone() {
		if err := until(ctx, f.Done()); err != nil {
			return none, err
		}
	}
	if err := f.order(ctx); err != nil {
		return none, err
	}
	return f.value, f.err
}

// Waiter is what a context may have as its value of [WaiterKey]: who is told that a
// goroutine waits for a future on behalf of the context, as one that lets others have
// its place meanwhile.
type Waiter interface {
	// BeginWait is called by a goroutine that is about to wait, which calls what it
	// returns when it waits no more.
	BeginWait() (end func())
}

// WaiterKey is the key of a Waiter in a context.
type WaiterKey struct{}

// until waits until done is closed, or returns the error of ctx if that ends
// before.
func until(ctx context.Context, done <-chan struct{}) error {
	if !closed(done) && ctx.Err() == nil {
		sleep(ctx, done)
	}
	if closed(done) { // both: what is done is worth more
		return nil
	}
	return ctx.Err()
}

// sleep returns when done is closed, or ctx ends.
func sleep(ctx context.Context, done <-chan struct{}) {
	if w, ok := ctx.Value(WaiterKey{}).(Waiter); ok {
		defer w.BeginWait()()
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
