package mux

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v4"

	"github.com/tensorpipe-go/tensorpipe/internal/turn"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// session implements transport.Session.
type session struct {
	link    *link
	inner   *yamux.Session
	windows *windows
	done    chan struct{}
	life    context.Context // ends with done
	expire  context.CancelFunc

	closing atomic.Bool   // Close was called
	gone    chan struct{} // closed when it has done its work

	opening  turn.Turn // streams are opened one after the other
	accepted chan *stream
	serve    func()        // starts serveAccept
	drained  chan struct{} // closed when Accept has nothing more to give

	running sync.WaitGroup // goroutines of this package

	mu      sync.Mutex
	err     error // why done is closed
	closed  bool  // by this process, here or below
	streams map[*stream]struct{}
	waiting map[uint32]struct{} // arrived, and neither accepted nor refused
}

func newSession(conn transport.Stream, cfg transport.SessionConfig) *session {
	s := &session{
		done:     make(chan struct{}),
		gone:     make(chan struct{}),
		opening:  turn.New(),
		accepted: make(chan *stream),
		drained:  make(chan struct{}),
		streams:  make(map[*stream]struct{}),
		waiting:  make(map[uint32]struct{}),
	}
	s.life, s.expire = context.WithCancel(context.Background())
	s.windows = newWindows(largest(cfg), cfg, func() { s.background(s.link.tell) })
	s.link = newLink(conn, cfg, s, s.windows)
	s.serve = sync.OnceFunc(func() { s.background(s.serveAccept) })
	return s
}

// Open waits for nothing but room in the queue of a connection that stands
// still, and for the peer to accept some of very many streams.
func (s *session) Open() (transport.Stream, error) {
	s.opening.Take()
	defer s.opening.Give()
	inner, err := s.inner.OpenStream(s.life)
	if err != nil {
		return nil, s.cause(err)
	}
	return s.adopt(inner), nil
}

func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *session) Close() error {
	if s.closing.Swap(true) {
		<-s.gone
		return nil
	}
	defer close(s.gone)
	if s.Err() != nil {
		s.end(transport.ErrClosed)
	} else {
		s.part()
	}
	s.link.finish()
	s.inner.Close()
	s.link.out.writers.Wait()
	s.running.Wait()
	s.windows.close()
	return nil
}

// part ends the session and lets what was written leave: yamux has a queue, and
// forgets it when it is closed. Its farewell goes behind all that is in it. It
// waits for room in the queue, and so in the background, where nothing begins
// any more behind the end.
func (s *session) part() {
	s.background(s.sayFarewell)
	s.end(transport.ErrClosed)
	t := time.NewTimer(lastWords)
	defer t.Stop()
	select {
	case <-s.link.parted:
	case <-t.C:
	}
}

// sayFarewell has the ends of the streams leave before yamux's farewell: those who
// asked for them may have stopped waiting, and peers take a stream that has not ended
// before its session for one that was cut off.
func (s *session) sayFarewell() {
	for _, st := range s.finished() {
		st.sendEnd()
	}
	s.inner.GoAway()
}

// finished lists the streams that nobody writes to any more.
func (s *session) finished() (all []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.isFinished() {
			all = append(all, st)
		}
	}
	return all
}

// end is the end of the session for all who use it. Unless it is this process
// that closed it, yamux lives on with what the streams hold.
func (s *session) end(err error) {
	s.windows.finishAll()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || err == transport.ErrClosed
	if s.err == nil {
		s.err = err
		close(s.done)
		s.expire()
		for st := range s.streams {
			st.wake()
		}
	}
	s.settle()
}

// cause is why a call of yamux failed.
func (s *session) cause(err error) error {
	if ended := s.Err(); ended != nil {
		return ended
	}
	if errors.Is(err, yamux.ErrRemoteGoAway) {
		return io.EOF
	}
	return err
}

// adopt makes a stream one of the session.
func (s *session) adopt(inner *yamux.Stream) *stream {
	st := newStream(s, inner)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = struct{}{}
	if s.err != nil {
		st.wake()
	}
	return st
}

func (s *session) forget(st *stream) {
	s.windows.leave(st.StreamID())
	s.link.sending.leave(st.StreamID())
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
}

// background runs f in a goroutine that Close waits for, unless Close came
// before.
func (s *session) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
}

// promptly runs f and waits for it, but not for long: f goes on by itself where
// the connection stands still.
func (s *session) promptly(f func()) {
	done := make(chan struct{})
	s.background(func() {
		defer close(done)
		f()
	})
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-done:
	case <-s.done:
	case <-limit.C:
	}
}
