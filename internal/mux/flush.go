package mux

import (
	"context"
	"sync/atomic"
)

// Flush implements [transport.Session] with a ping, which the peer answers after it has received
// everything that was sent before. It waits for the answer, and before that for another Flush in
// progress, for which ctx does not count. The error is the reason of the session's end or the cause
// of ctx.
func (s *session) Flush(ctx context.Context) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	answered := s.link.flush.expect()
	request := pingMessage(syn, s.link.flush.number.Load())
	s.link.out.enqueue(&request, nil, ctx.Done())
	s.link.watch.expect()
	select {
	case <-answered:
		return nil
	case <-s.done:
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flushPing is the ping of the current Flush. Its numbers have the highest bit, which those of the
// pings that measure the round trip never get.
type flushPing struct {
	number   atomic.Uint32
	answered atomic.Pointer[chan struct{}]
}

// expect begins a flush: it chooses the next number, and returns a channel that is closed when the
// peer has answered the ping with that number. One goroutine at a time calls it.
func (f *flushPing) expect() <-chan struct{} {
	answered := make(chan struct{})
	f.number.Store((f.number.Load() + 1) | 1<<31)
	f.answered.Store(&answered)
	return answered
}

// replied handles the peer's answer to the ping with that number. It ignores all but the first one
// to the current ping.
func (f *flushPing) replied(number uint32) {
	if number != f.number.Load() {
		return
	}
	if answered := f.answered.Swap(nil); answered != nil {
		close(*answered)
	}
}
