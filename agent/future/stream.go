package future

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// readyEvent is an event on a stream after which the value is valid.
type readyEvent struct {
	stream device.Stream
	device device.Device
	event  device.Event
}

// SetOn completes f with a value that is computed by work already enqueued on streams: pass the
// stream of each buffer in the value. Streams may be nil, as those of host memory are, and may
// repeat. Only streams wait for that work, see Wait.
//
// The error is [ErrDone] if f is done already. If a stream cannot record an event, f fails with a
// [*StreamError], which SetOn returns too.
func (f *Future[T]) SetOn(v T, streams ...device.Stream) error {
	if f.IsDone() {
		return ErrDone // without recording events
	}
	events, err := record(streams)
	if done := f.complete(v, err, events); done != nil {
		return done
	}
	return err
}

// Order makes work that is enqueued on s from now on wait for the work that computes the value of
// f, on all devices. It is for streams that are not in a context, and for a stream of another
// device than the value's. It has no effect if f has failed. The error is [ErrPending] if f is
// not done, or a [*StreamError].
func (f *Future[T]) Order(s device.Stream) error {
	if !f.IsDone() {
		return ErrPending
	}
	for _, e := range f.events {
		if err := e.makeWait(s); err != nil {
			return err
		}
	}
	return nil
}

// order makes the streams of ctx wait for the work that computes the value of f, each for the
// events of its device. f must be done. The error is a *StreamError.
func (f *Future[T]) order(ctx context.Context) error {
	for _, e := range f.events {
		if err := e.makeWait(device.StreamFrom(ctx, e.device)); err != nil {
			return err
		}
	}
	return nil
}

// makeWait makes work that is enqueued on s from now on wait for the event. It does nothing if s
// is nil or the stream of the event. The error is a *StreamError.
func (e readyEvent) makeWait(s device.Stream) error {
	if s == nil || s == e.stream {
		return nil // a stream is ordered after its own events
	}
	if err := s.Wait(e.event); err != nil {
		return &StreamError{Op: "wait", Device: s.Device(), Err: err}
	}
	return nil
}

// record records one event on each distinct stream, and returns the events. Streams may be nil.
// The error is a *StreamError.
func record(streams []device.Stream) ([]readyEvent, error) {
	var events []readyEvent
	for i, s := range streams {
		if s == nil || slices.Contains(streams[:i], s) {
			continue
		}
		ev, err := s.Record()
		if err != nil {
			return nil, &StreamError{Op: "record", Device: s.Device(), Err: err}
		}
		events = append(events, readyEvent{stream: s, device: s.Device(), event: ev})
	}
	return events, nil
}

// mergeEvents appends to merged the events of those devices of which merged has none, and returns
// the extended slice. If merged is empty, it returns events itself. On a device in both, the event
// in merged must have been recorded after the one in events.
func mergeEvents(merged, events []readyEvent) []readyEvent {
	fresh := len(merged)
	if fresh == 0 {
		return events
	}
	for _, e := range events {
		covered := func(o readyEvent) bool { return o.device == e.device }
		if !slices.ContainsFunc(merged[:fresh], covered) {
			merged = append(merged, e)
		}
	}
	return merged
}
