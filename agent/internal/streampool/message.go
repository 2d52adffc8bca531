package streampool

import (
	"context"
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Message has the streams by which the tensors of one message are copied, one for each device. They wait for the streams
// of the tensors and for those of a context; the copies do not delay later work on these. The zero Message has none.
type Message struct{ streams []copyStream }

// copyStream is the stream for the copies from one device.
type copyStream struct {
	device.Stream
	sources []device.Stream // on which the tensors are valid, or which may still change them
}

// Order returns b as a buffer that is valid on a stream of the message, from p. The stream waits for the present work of
// the stream of b and of the one that ctx has for its device. kinds returns the device kind of a name, nil if it is
// unknown; b then stays as it is, as does memory that is valid at once if ctx has no stream. The error is that of the
// kind or of a stream.
func (m *Message) Order(ctx context.Context, p *Pool, kinds func(string) device.Kind, b device.Buffer) (device.Buffer, error) {
	on := b.Device()
	if b.Stream() != nil {
		on = b.Stream().Device()
	} else if b.IsHost() {
		return b, nil
	}
	current := device.StreamFrom(ctx, on)
	kind := kinds(on.Kind)
	if kind == nil || b.Stream() == nil && current == nil {
		return b, nil
	}
	i := slices.IndexFunc(m.streams, func(s copyStream) bool { return s.Device() == on })
	if i < 0 {
		s, err := p.Get(kind, on)
		if err != nil || s == nil {
			return b, err
		}
		i, m.streams = len(m.streams), append(m.streams, copyStream{Stream: s})
	}
	for _, source := range []device.Stream{current, b.Stream()} {
		if err := m.streams[i].after(source); err != nil {
			return b, err
		}
	}
	return b.WithStream(m.streams[i].Stream), nil
}

// after makes the work that is enqueued on s from now on wait for the work of source, which may be nil.
func (s *copyStream) after(source device.Stream) error {
	if source == nil || slices.Contains(s.sources, source) {
		return nil
	}
	if err := s.WaitFor(source); err != nil {
		return err
	}
	s.sources = append(s.sources, source)
	return nil
}

// End returns the streams to p once the copies are enqueued, or if there will be none. Later work on the streams of the
// tensors waits for the copies, so that their memory may be changed. If such a stream cannot wait, the error is a
// *future.StreamError, or several of them joined: then that memory must not be changed.
func (m *Message) End(p *Pool) error {
	defer func() { // also if a stream panics
		for _, s := range m.streams {
			p.Put(s.Stream)
		}
		clear(m.streams)
		m.streams = m.streams[:0]
	}()
	var all []error
	for _, s := range m.streams {
		for _, source := range s.sources {
			if err := source.WaitFor(s.Stream); err != nil {
				all = append(all, &future.StreamError{Op: "wait", Device: source.Device(), Err: err})
			}
		}
	}
	return errors.Join(all...)
}
