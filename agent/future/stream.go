package future

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// mark is a point in a stream behind which the value is valid.
type mark struct {
	stream device.Stream
	device device.Device
	event  device.Event
}

// SetOn completes f with a value that the work enqueued so far on streams makes:
// name the stream of each buffer in the value. Streams may be nil, as those of
// host memory are, or the same. Nobody waits for that work but streams, see Wait.
//
// The error is [ErrDone], or a [*StreamError], with which f then has failed.
func (f *Future[T]) SetOn(v T, streams ...device.Stream) error {
	if f.IsDone() {
		return ErrDone // saves the events
	}
	marks, err := record(streams)
	if done := f.complete(v, err, marks); done != nil {
		return done
	}
	return err
}

// Order makes what is enqueued on s from now on wait for the work that makes the
// value of f, on all devices. It is for streams that are in no context, and for a
// stream of another device than the value. It does nothing if f has failed. The
// error is [ErrPending] or a [*StreamError].
func (f *Future[T]) Order(s device.Stream) error {
	if !f.IsDone() {
		return ErrPending
	}
	for _, m := range f.marks {
		if err := m.before(s); err != nil {
			return err
		}
	}
	return nil
}

// order makes the streams of ctx wait, each for the work on its device.
func (f *Future[T]) order(ctx context.Context) error {
	for _, m := range f.marks {
		if err := m.before(device.StreamFrom(ctx, m.device)); err != nil {
			return err
		}
	}
	return nil
}

// before makes later work of s wait for the mark.
func (m mark) before(s device.Stream) error {
	if s == nil || s == m.stream {
		return nil // a stream is behind its own marks anyway
	}
	if err := s.Wait(m.event); err != nil {
		return &StreamError{Op: "wait", Device: s.Device(), Err: err}
	}
	return nil
}

// record makes one mark for each stream.
func record(streams []device.Stream) ([]mark, error) {
	var marks []mark
	for i, s := range streams {
		if s == nil || slices.Contains(streams[:i], s) {
			continue
		}
		ev, err := s.Record()
		if err != nil {
			return nil, &StreamError{Op: "record", Device: s.Device(), Err: err}
		}
		marks = append(marks, mark{stream: s, device: s.Device(), event: ev})
	}
	return marks, nil
}

// inherit adds to own the marks of which none of own is on the same device. Those
// of own are behind them where it is.
func inherit(own, marks []mark) []mark {
	fresh := len(own)
	if fresh == 0 {
		return marks
	}
	for _, m := range marks {
		covered := func(o mark) bool { return o.device == m.device }
		if !slices.ContainsFunc(own[:fresh], covered) {
			own = append(own, m)
		}
	}
	return own
}
