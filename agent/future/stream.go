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

// SetOn completes f with the value v, which is computed by work that is already enqueued on
// streams. streams must have the stream of each buffer in v. An element may be nil, for host
// memory, and streams may contain duplicates. SetOn does not wait for the work: it records an event
// on each stream, and Wait and Order make other streams wait for these events. f keeps v, and the
// streams but not the slice.
//
// SetOn returns nil, or [ErrDone] if f was done before; then f does not change. If a stream cannot
// record an event, f fails with a [*StreamError], and SetOn returns that error.
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

// Order makes work that is enqueued on s after the call wait for the work that computes the value
// of f, on whatever device that is. The host does not wait. Use Order for a stream that is not in
// the context given to Wait, or that belongs to another device than the value.
//
// Order returns [ErrPending] if f is not done, a [*StreamError] if s cannot wait, and otherwise
// nil. It has no effect if s is nil or f has failed.
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

// order makes the streams of ctx (device.WithStream) wait for the work that computes the value of
// f: each stream for the events recorded on its device. f must be done. The host does not wait. If
// a stream cannot wait, order returns a *StreamError; otherwise nil, also if f has failed or ctx
// has no stream for a device.
func (f *Future[T]) order(ctx context.Context) error {
	for _, e := range f.events {
		if err := e.makeWait(device.StreamFrom(ctx, e.device)); err != nil {
			return err
		}
	}
	return nil
}

// makeWait makes work that is enqueued on s after the call wait for the event e, and returns nil.
// It does nothing if s is nil or is the stream on which e was recorded. If s cannot wait, it
// returns a *StreamError.
func (e readyEvent) makeWait(s device.Stream) error {
	if s == nil || s == e.stream {
		return nil // a stream is ordered after its own events
	}
	if err := s.Wait(e.event); err != nil {
		return &StreamError{Op: "wait", Device: s.Device(), Err: err}
	}
	return nil
}

// record records one event on each distinct stream of the list and returns the events, which refer
// to the streams. Elements that are nil are skipped. At the first stream that cannot record an
// event, it returns nil and a *StreamError.
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

// mergeEvents appends to merged the elements of events for whose devices merged has no event, and
// returns the extended slice. It may write to the spare capacity of merged. If merged is empty, it
// returns the slice events itself. If both have events of one device, those in merged must have
// been recorded after those in events, so that waiting for them suffices.
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
