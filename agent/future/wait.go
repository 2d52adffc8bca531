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

// until waits until done is closed, or returns the error of ctx if that ends
// before.
func until(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done: // both: what is done is worth more
		return nil
	default:
		return ctx.Err()
	}
}
