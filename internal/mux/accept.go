package mux

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Accept gives out what arrived before the end of the session, too.
func (s *session) Accept(ctx context.Context) (transport.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.serve()
	select {
	case st := <-s.accepted:
		return st, nil
	case <-s.drained:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveAccept hands streams of yamux, which knows no contexts, to Accept. It
// holds one at most, so that yamux goes on counting those that wait.
func (s *session) serveAccept() {
	for {
		inner, err := s.inner.AcceptStream()
		if err != nil {
			return
		}
		st := s.adopt(inner)
		select {
		case s.accepted <- st:
			s.leaves(inner.StreamID())
		case <-s.drained:
			return
		}
	}
}

// arrived notes a stream that yamux is about to learn of: it queues it for
// AcceptStream or refuses it with a reset.
func (s *session) arrived(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[stream] = struct{}{}
}

func (s *session) refused(stream uint32) { s.leaves(stream) }

func (s *session) leaves(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, stream)
	s.settle()
}

// settle ends Accept when no stream is left for it.
func (s *session) settle() {
	select {
	case <-s.drained:
		return
	default:
	}
	if s.closed || s.err != nil && len(s.waiting) == 0 {
		close(s.drained)
	}
}
