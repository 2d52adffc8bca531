package device

import "context"

type streamsKey struct{}

// current is the stream of new work on one device. The device is kept beside
// the stream so that a look-up calls no method.
type current struct {
	device Device
	stream Stream
}

// WithStream returns a context in which new work on the device of s goes to s.
// Streams of other devices that ctx carries stay in force. A nil stream, which
// is what a kind without streams hands out, changes nothing.
//
// Only calls that create work read the context: tensor operations and calls of
// the agent. Pipes and channels obey the stream in the [Buffer].
func WithStream(ctx context.Context, s Stream) context.Context {
	if s == nil {
		return ctx
	}
	d := s.Device()
	set := []current{{d, s}}
	for _, c := range streamsOf(ctx) {
		if c.device != d {
			set = append(set, c)
		}
	}
	return context.WithValue(ctx, streamsKey{}, set)
}

// StreamFrom returns the stream that ctx names for new work on d, or nil where
// the kind's default stream is meant.
func StreamFrom(ctx context.Context, d Device) Stream {
	for _, c := range streamsOf(ctx) {
		if c.device == d {
			return c.stream
		}
	}
	return nil
}

// streamsOf returns the one value that holds the streams of all devices, so
// that its cost does not grow with the number of devices in use. It is never
// changed once it is in a context.
func streamsOf(ctx context.Context) []current {
	set, _ := ctx.Value(streamsKey{}).([]current)
	return set
}
