package mux

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-yamux/v4"

	"github.com/tensorpipe-go/tensorpipe/internal/chanmutex"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// session implements transport.Session over one connection. Its methods may be called concurrently.
type session struct {
	link    *link
	inner   *yamux.Session
	windows *windows
	done    chan struct{}
	life    context.Context // ends when done is closed
	expire  context.CancelFunc

	closing   atomic.Bool   // Close was called
	closeDone chan struct{} // closed when Close has finished

	opening  chanmutex.Mutex // serializes Open
	flushing sync.Mutex      // serializes Flush
	accepted chan transport.Stream
	serve    func()        // starts serveAccept
	drained  chan struct{} // closed when Accept will return no more streams

	running sync.WaitGroup // goroutines of this package

	mu      sync.Mutex
	err     error // why done is closed
	closed  bool  // by this process, or by the connection for it
	streams map[*stream]struct{}
	waiting map[uint32]struct{} // streams of the peer that were neither accepted nor reset
}

// Open implements transport.Session: it opens a stream to the peer and returns it. It blocks only
// while the connection is stalled and the queue is full, or while the peer has many streams to
// accept, and at most until the session ends. The error is that of cause: the reason of the
// session's end, io.EOF if the peer has announced the end, or an error of yamux.
func (s *session) Open() (transport.Stream, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.link.watch.expect()
	inner, err := s.inner.OpenStream(s.life)
	if err != nil {
		return nil, s.cause(err)
	}
	return s.addStream(inner), nil
}

// OpenBulk implements transport.Session. It returns transport.ErrNotSupported: large data would
// share the connection with all streams.
func (s *session) OpenBulk() (transport.Stream, error) { return nil, transport.ErrNotSupported }

func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *session) Close() error {
	if s.closing.Swap(true) {
		<-s.closeDone
		return nil
	}
	defer close(s.closeDone)
	if s.Err() != nil {
		s.end(transport.ErrClosed)
	} else {
		s.goAway()
	}
	s.link.out.limit(time.Now().Add(closeTimeout))
	if s.link.out.close() { // all was written completely
		s.link.CloseWrite()
	}
	s.inner.Close()
	s.link.out.writers.Wait()
	s.running.Wait()
	_ = s.link.fail(transport.ErrClosed) // a goroutine that polls receives nothing more
	s.windows.close()
	return nil
}

// goAway ends the session with ErrClosed and waits until all written bytes are sent, for at most
// drainTimeout. Yamux discards its queue when it is closed, so goAway first makes yamux send a
// GoAway, the message that announces the end, after everything in the queue. A goroutine does this,
// since it may have to wait for space in the queue. No goroutine of the session starts after
// goAway.
//
// The ends of finished streams are sent before: the calls that requested them may have stopped
// waiting, and the peer treats a stream that has not ended before its session as cut off.
func (s *session) goAway() {
	s.background(func() {
		s.mu.Lock()
		open := slices.Collect(maps.Keys(s.streams))
		s.mu.Unlock()
		for _, st := range open {
			if st.finished.Load() {
				st.sendEnd()
			}
		}
		s.inner.GoAway()
	})
	s.end(transport.ErrClosed)
	t := time.NewTimer(drainTimeout)
	defer t.Stop()
	select {
	case <-s.link.goAwaySent:
	case <-t.C:
	}
}

// end ends the session with the reason err, if it has not ended: it closes done, wakes all calls,
// and stops granting credit. Unless err is ErrClosed, bytes that have arrived on the streams can
// still be read. After end(ErrClosed), even if the session had ended before, no goroutine of the
// session starts any more, and Accept fails. It acquires mu.
func (s *session) end(err error) {
	s.windows.stopAll()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || err == transport.ErrClosed
	if s.err == nil {
		s.err = err
		for st := range s.streams {
			st.wake() // before Done: calls that begin afterwards fail
		}
		close(s.done)
		s.expire()
	}
	s.closeDrained()
}

// cause returns the error that a caller of the session gets for err, an error of yamux: the reason
// of the session's end if it has ended, io.EOF if the peer has sent a GoAway, and otherwise err.
func (s *session) cause(err error) error {
	if ended := s.Err(); ended != nil {
		return ended
	}
	if errors.Is(err, yamux.ErrRemoteGoAway) {
		return io.EOF
	}
	return err
}

// addStream returns a stream around inner, the stream of yamux, and adds it to the session, which
// keeps it until its Close. It creates the stream's windows if there are none. If the session has
// ended, calls on the stream do not block. It acquires mu.
func (s *session) addStream(inner *yamux.Stream) transport.Stream {
	st := &stream{
		Stream:     inner,
		session:    s,
		window:     s.windows.open(inner.StreamID()),
		sendWindow: s.link.sendWindows.open(inner.StreamID()),
		reading:    chanmutex.New(),
		writing:    chanmutex.New(),
	}
	st.received = st.window.received
	st.readDeadline.Wake = st.received.signal
	var result transport.Stream = st
	if s.link.watch != nil {
		result = newPolledStream(st)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = struct{}{}
	if s.err != nil {
		st.wake()
	}
	return result
}

// background runs f on a goroutine that Close waits for. It does nothing if this process has closed
// the session, or if the connection was closed by this process. It acquires mu.
func (s *session) background(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
}

// runBriefly runs f on a goroutine and waits until f has returned, the session has ended, or
// closeTimeout has passed; f may go on after that. If this process has closed the session or its
// connection, f is not run.
func (s *session) runBriefly(f func()) {
	done := make(chan struct{})
	s.background(func() {
		defer close(done)
		f()
	})
	limit := time.NewTimer(closeTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-s.done:
	case <-limit.C:
	}
}

// Accept implements transport.Session: it blocks until the peer has opened a stream, and returns
// the stream. After the session has ended it first returns the streams that arrived before, unless
// this process has closed the session. The error is that of ctx, or the reason of the session's
// end.
func (s *session) Accept(ctx context.Context) (transport.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.serve()
	s.link.watch.expect()
	select {
	case st := <-s.accepted:
		return st, nil
	case <-s.drained:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveAccept is the goroutine that passes streams of yamux to Accept, because yamux's AcceptStream
// has no context. It takes one stream at a time, so that yamux goes on counting those that wait. It
// returns when yamux is closed or Accept will return no more streams.
func (s *session) serveAccept() {
	for {
		inner, err := s.inner.AcceptStream()
		if err != nil {
			return
		}
		st := s.addStream(inner)
		select {
		case s.accepted <- st:
			s.removeWaiting(inner.StreamID())
		case <-s.drained:
			return
		}
	}
}

// addWaiting implements linkObserver: it records that a stream of the peer waits for Accept.
// removeWaiting ends that, when Accept returns the stream or the stream is reset.
func (s *session) addWaiting(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[stream] = struct{}{}
}

func (s *session) removeWaiting(stream uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, stream)
	s.closeDrained()
}

// closeDrained closes the channel drained, which makes Accept fail, if this process has closed the
// session, or if the session has ended and every stream that arrived was accepted or reset. It does
// nothing if the channel is closed already. The caller holds mu.
func (s *session) closeDrained() {
	select {
	case <-s.drained:
		return
	default:
	}
	if s.closed || s.err != nil && len(s.waiting) == 0 {
		close(s.drained)
	}
}
