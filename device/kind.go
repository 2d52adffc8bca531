package device

import (
	"context"
	"slices"
)

// Memory is one contiguous region that the host cannot address, such as GPU memory. Each kind has
// its own implementation, which the channels of that kind know.
type Memory interface {
	// Len returns the size of the region in bytes.
	Len() int
}

// Kind is a device kind. The application supplies it.
type Kind interface {
	// Name returns the kind's name on the wire.
	Name() string

	// Viable returns nil if the kind can be used, and otherwise the reason, which satisfies
	// errors.Is(err, errors.ErrUnsupported).
	Viable() error

	// Devices returns the usable devices of the kind.
	Devices() []Device

	// Alloc returns a buffer of size bytes on d with undefined contents, valid on stream, or on the
	// default stream of the kind if stream is nil. The memory exists at least as long as the buffer is
	// reachable. The error is ErrDevice, ErrStream or ErrSize.
	Alloc(d Device, size int, stream Stream) (Buffer, error)

	// NewStream creates a stream on d. A kind without streams returns nil. The error is ErrDevice if d
	// is not of this kind.
	NewStream(d Device) (Stream, error)

	// Copy enqueues a copy of src to dst on dst's stream, after the work that src's stream holds at
	// present, and makes src's stream wait for the copy. One of the buffers may be host memory, the
	// other must be of this kind. Both may be host memory if one of them is valid on a stream of this
	// kind. The lengths must be equal. If neither buffer has a stream the copy is complete when Copy
	// returns. The error is ErrMemory, ErrStream or a LengthError; then nothing has been enqueued.
	//
	// Otherwise Copy does not block until the streams have done their work, at least for host memory up
	// to a size that the kind documents: if its driver copies only page-locked memory without blocking,
	// the kind stages other memory itself, or copies in a function that the stream calls. Host memory
	// must not be changed until the copy is complete in stream order; the kind keeps it reachable until
	// then.
	Copy(dst, src Buffer) error
}

// Stream is an ordered queue of work on one device. Work runs after everything that was enqueued on
// the same stream before; work on two streams is unordered until one waits for an [Event] of the
// other.
//
// All methods may be called from any goroutine. Only Synchronize blocks the caller on device work.
type Stream interface {
	// Device returns the device whose work the stream orders.
	Device() Device

	// Record returns an event that completes when all work enqueued so far has completed.
	Record() (Event, error)

	// Wait delays work enqueued after this call until ev has completed. The event may belong to
	// another device or kind.
	Wait(ev Event) error

	// WaitFor delays work enqueued after this call until the present work of other has completed, as
	// Wait for an event of other does. The stream other may belong to another device or kind. It
	// does nothing if both are the same.
	WaitFor(other Stream) error

	// Synchronize blocks the host until all work enqueued so far has completed, and returns the error
	// of that work, or the error of ctx if ctx ends first. That does not cancel the work.
	Synchronize(ctx context.Context) error
}

// Event marks a position in a stream. It completes when all work enqueued before it has completed
// or failed. All methods may be called from any goroutine.
type Event interface {
	// Done reports, without blocking, whether the work before the event has completed, and the
	// error of that work.
	Done() (bool, error)

	// Synchronize blocks the host until the event completes, and returns the error of the work before
	// it, or the error of ctx if ctx ends first.
	Synchronize(ctx context.Context) error

	// Release frees the event, which must not be used after that; streams that wait for it go on to do
	// so. The garbage collector frees an event that was not released.
	Release()
}

type streamsKey struct{}

// streamEntry is the stream for new work on one device. It stores the device so that a lookup calls
// no method.
type streamEntry struct {
	device Device
	stream Stream
}

// WithStream returns a context derived from ctx in which new work on the device of s goes to the
// stream s. It replaces a stream of the same device in ctx; streams of other devices stay in
// effect. If s is nil, as a kind without streams returns it, WithStream returns ctx.
//
// Pipes and channels do not read the context: they use the stream of the [Buffer].
func WithStream(ctx context.Context, s Stream) context.Context {
	if s == nil {
		return ctx
	}
	return WithStreams(ctx, s)
}

// WithStreams returns a context derived from ctx in which new work on the device of each of streams goes to that
// stream, as several calls of WithStream do. No two streams may be of one device, and none may be nil.
func WithStreams(ctx context.Context, streams ...Stream) context.Context {
	if len(streams) == 0 {
		return ctx
	}
	before := streamsOf(ctx)
	set := make([]streamEntry, 0, len(streams)+len(before))
	for _, s := range streams {
		set = append(set, streamEntry{s.Device(), s})
	}
	for _, c := range before {
		if !slices.ContainsFunc(set[:len(streams)], func(e streamEntry) bool { return e.device == c.device }) {
			set = append(set, c)
		}
	}
	return context.WithValue(ctx, streamsKey{}, set)
}

// StreamFrom returns the stream that [WithStream] has set in ctx for new work on d. If there is
// none it returns nil, which stands for the default stream of the kind.
func StreamFrom(ctx context.Context, d Device) Stream {
	for _, c := range streamsOf(ctx) {
		if c.device == d {
			return c.stream
		}
	}
	return nil
}

// streamsOf returns the streams of all devices that WithStream has set in ctx, or nil if there are
// none. They are in one value of the context, so that a lookup does not become slower with each
// WithStream. The slice is shared and must not be changed.
func streamsOf(ctx context.Context) []streamEntry {
	set, _ := ctx.Value(streamsKey{}).([]streamEntry)
	return set
}
