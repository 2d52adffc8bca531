package device

import "context"

// Stream is an ordered queue of work on one device. Work enqueued on a stream
// runs after everything enqueued on it before; work on two streams is
// unordered until one waits for an [Event] of the other.
//
// All methods may be called from any goroutine. None but Synchronize blocks
// the caller on device work.
type Stream interface {
	// Device is the device whose work the stream orders.
	Device() Device

	// Record returns an event that completes when all work enqueued so far
	// has completed.
	Record() (Event, error)

	// Wait makes work enqueued after this call run only once ev has
	// completed. The event may belong to another device or kind.
	Wait(ev Event) error

	// Synchronize blocks the host until all work enqueued so far has
	// completed or ctx ends. A cancelled wait does not cancel the work.
	Synchronize(ctx context.Context) error
}

// Event marks a point in a stream.
type Event interface {
	// Done reports whether the work before the event has completed, and the
	// error of that work.
	Done() (bool, error)

	// Synchronize blocks the host until the event completes or ctx ends.
	Synchronize(ctx context.Context) error
}
