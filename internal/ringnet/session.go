package ringnet

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Addresses are what streams call their ends.
type Addresses struct{ Local, Remote net.Addr }

// Session is streams between two processes. It implements [transport.Session].
type Session struct {
	bond      bond
	addresses Addresses
	seat      *wait.Memory
	limit     int // of streams that the peer has open
	budget    transport.Budget
	accepted  chan *stream // opened by the peer
	listening sync.WaitGroup
	reducer   reducer

	opening sync.Mutex // of Open, which may wait for a peer that does not listen

	mu       sync.Mutex
	closed   bool
	segments []*segment.Segment
	begun    bool     // this end has opened a stream, which is at its first place
	mine     []*place // for streams that this end opens
	theirs   []*place
	streams  map[*stream]*place // open ones
	taken    int                // of theirs
}

var _ transport.BulkSession = (*Session)(nil)

// NewSession makes the socket a session; it is its owner. The peer does the same.
// What is written to the socket belongs to the session at once; it reads from it,
// where the peer's first bell is next, when ready is closed. spin is how long at most who
// waits looks before it sleeps. A window is the size of a ring that is full: 656 KiB for
// the first stream that an end opens and for bulk, and 2 MiB more after much traffic; 84
// KiB for others. Those 2 MiB are acquired from the budget by the end that writes, and
// released when the ring shrinks, or the stream ends.
func NewSession(sock *net.UnixConn, ready <-chan struct{}, cfg transport.SessionConfig, spin time.Duration, a Addresses) (*Session, error) {
	return NewSessionOn(nil, sock, ready, cfg, spin, a)
}

// NewSessionOn is NewSession where both ends have a segment for the streams that the
// client opens: see [CreateShared]. The session owns it, also if NewSessionOn fails.
// nil is allowed.
func NewSessionOn(shared *segment.Segment, sock *net.UnixConn, ready <-chan struct{}, cfg transport.SessionConfig, spin time.Duration, a Addresses) (*Session, error) {
	s := &Session{
		addresses: a,
		seat:      wait.NewMemory(spin),
		limit:     min(cfg.Streams, maxPlaces/2),
		budget:    cfg.Budget,
		streams:   make(map[*stream]*place),
	}
	s.accepted = make(chan *stream, s.limit)
	err := s.useShared(shared, cfg)
	if err == nil {
		err = s.bond.init(sock)
	}
	if err != nil {
		s.closeSegments()
		return nil, err
	}
	s.listening.Go(func() {
		<-ready
		s.listen()
	})
	return s, nil
}

func (s *Session) listen() {
	s.bond.listen(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.poke()
	}
}

// Open implements [transport.Session].
func (s *Session) Open() (transport.Stream, error) { return s.open(smallRing) }

// OpenBulk implements [transport.BulkSession].
func (s *Session) OpenBulk() (transport.Stream, error) { return s.open(largeRing) }

// open makes a stream with such rings, if it is not the first.
func (s *Session) open(kind ringKind) (transport.Stream, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if err := s.bond.failure(); err != nil {
		return nil, err
	}
	for _, st := range s.resetByPeer() {
		st.lapse()
	}
	k, err := s.room(kind)
	if err != nil {
		return nil, err
	}
	if k < 0 {
		return refused{s.addresses}, nil
	}
	st, err := s.begin(k)
	if err != nil {
		return nil, err
	}
	s.bond.ring(st.place | bellOpened)
	return st, nil
}

// begin makes a stream at a place of this end.
func (s *Session) begin(k int) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	p := s.mine[k]
	if err := p.page(); err != nil {
		return nil, err
	}
	p.used, s.begun = true, true
	step.Here()
	p.left.Store(0)
	wordsIn(p.here.header).clear(p.level)
	wordsIn(p.there.header).clear(p.level)
	step.Here()
	return s.add(bell(k<<bellPlace)|bellOwn, p, ends{in: newReaderEnd(p.there, p.level), out: newWriterEnd(p.here, p.level)}), nil
}

// resetByPeer lists this end's streams that the peer has refused.
func (s *Session) resetByPeer() (all []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for st, p := range s.streams {
		if st.place.own() && p.left.Load() != 0 && wordsIn(p.there.header).finished.Load() == reset {
			all = append(all, st)
		}
	}
	return all
}

// add makes a stream at a place. The caller holds mu.
func (s *Session) add(at bell, p *place, e ends) *stream {
	st := newStream(&s.bond, at, e, s.addresses, s.seat)
	st.onClose = s.leave
	e.out.growth.noted = func() { s.reducer.grew(s.reduce) }
	e.out.growth.budget = s.budget
	s.streams[st] = p
	return st
}

// room returns a place with such rings that nobody uses, which may be a new one; -1
// where there are too many. The caller holds opening.
func (s *Session) room(kind ringKind) (int, error) {
	k, known, err := s.free(kind)
	if err != nil || known {
		return k, err
	}
	if k >= 2*s.limit {
		return -1, nil
	}
	seg, err := created(k, kind)
	if err != nil {
		return 0, err
	}
	if err := s.bond.hand(seg.File()); err != nil {
		seg.Close()
		return 0, cause(err)
	}
	_ = seg.CloseFile()
	return k, s.extend(seg)
}

// free returns a place with such rings that is known and that nobody uses, or the
// next one. The first stream gets the first place, whatever its rings are.
func (s *Session) free(kind ringKind) (k int, known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, false, transport.ErrClosed
	}
	for k, p := range s.mine {
		if !p.used && p.left.Load() != 0 && (p.kind == kind || !s.begun) {
			return k, true, nil
		}
	}
	return len(s.mine), false, nil
}

// extend adds the places of a segment that the peer has got.
func (s *Session) extend(seg *segment.Segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		seg.Close()
		return transport.ErrClosed
	}
	s.segments = append(s.segments, seg)
	added := places(seg.Bytes(), len(s.mine))
	for _, p := range added {
		p.left.Store(1)
	}
	s.mine = append(s.mine, added...)
	return nil
}

// arrived implements listener: the peer's next segment.
func (s *Session) arrived(f *os.File) error {
	defer f.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	k := len(s.theirs)
	if k >= 2*s.limit {
		return fmt.Errorf("%w: more than %d places", ErrCorrupt, k)
	}
	seg, err := mapPeers(f, sizes(k))
	if err != nil {
		return err
	}
	s.segments = append(s.segments, seg)
	s.theirs = append(s.theirs, places(seg.Bytes(), k)...)
	return nil
}

// rang implements listener.
func (s *Session) rang(b bell) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case b.kind() == bellSegment:
		return nil // it has arrived
	case b.kind() == bellOpened:
		return s.opened(b)
	}
	s.rouse(b)
	return nil
}

// rouse wakes the stream that a bell is about; if it is closed nobody waits. The
// caller holds mu.
func (s *Session) rouse(b bell) {
	at := b&^bellKind ^ bellOwn
	for st := range s.streams {
		if st.place == at && b.kind() == bellReadable {
			st.read.poke()
		} else if st.place == at {
			st.write.poke()
		}
	}
}

// opened takes a stream of the peer, or refuses it. The caller holds mu.
func (s *Session) opened(b bell) error {
	k := b.place()
	if !b.own() || k >= len(s.theirs) || s.theirs[k].used {
		return fmt.Errorf("%w: a stream at place %d", ErrCorrupt, k)
	}
	p := s.theirs[k]
	if err := p.page(); err != nil {
		return err
	}
	st := s.add(bell(k<<bellPlace), p, ends{in: newReaderEnd(p.here, p.level), out: newWriterEnd(p.there, p.level)})
	p.used = true
	s.taken++
	if s.taken <= s.limit && !s.closed {
		s.accepted <- st // has room: those that are in it are open
		return nil
	}
	st.write.turn.Lock()
	st.finish(reset)
	st.write.turn.Unlock()
	s.mu.Unlock() // which Close takes
	_ = st.Close()
	s.mu.Lock()
	return nil
}

// leave is the end of a stream, whose turns its caller holds. Its place may be used again
// from then on.
func (s *Session) leave(st *stream) {
	st.ends.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.streams[st]
	delete(s.streams, st)
	p.used = false
	if !st.place.own() {
		s.taken--
		step.Here()
		p.left.Store(1) // the peer may use the place again from here on
		step.Here()
	}
}

// Accept implements [transport.Session].
func (s *Session) Accept(ctx context.Context) (transport.Stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case st := <-s.accepted:
		return s.take(st)
	default:
	}
	select {
	case st := <-s.accepted:
		return s.take(st)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.bond.done:
	}
	select {
	case st := <-s.accepted:
		return s.take(st)
	default:
		return nil, s.bond.failure()
	}
}

// take gives a stream to a caller of Accept, unless this end has closed.
func (s *Session) take(st *stream) (transport.Stream, error) {
	if over := st.over.Load(); over != nil {
		return nil, *over
	}
	return st, nil
}

// Done implements [transport.Session].
func (s *Session) Done() <-chan struct{} { return s.bond.done }

// Err implements [transport.Session].
func (s *Session) Err() error { return s.bond.failure() }

// Close implements [transport.Session].
func (s *Session) Close() error {
	s.bond.end(transport.ErrClosed)
	s.listening.Wait()
	s.reducer.stop()
	for _, st := range s.finish() {
		st.detach()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.streams)
	s.closeSegments()
	return nil
}

func (s *Session) closeSegments() {
	for _, seg := range s.segments {
		_ = seg.Close()
	}
}

// finish lets no stream begin any more and returns those there are.
func (s *Session) finish() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return slices.Collect(maps.Keys(s.streams))
}

// all are the streams that are open.
func (s *Session) all() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.streams))
}

// refused is a stream for which there is no place.
type refused struct{ addresses Addresses }

func (refused) Read([]byte) (int, error)         { return 0, errReset }
func (refused) Write([]byte) (int, error)        { return 0, errReset }
func (refused) CloseWrite() error                { return nil }
func (refused) Close() error                     { return nil }
func (refused) SetDeadline(time.Time) error      { return nil }
func (refused) SetReadDeadline(time.Time) error  { return nil }
func (refused) SetWriteDeadline(time.Time) error { return nil }
func (r refused) LocalAddr() net.Addr            { return r.addresses.Local }
func (r refused) RemoteAddr() net.Addr           { return r.addresses.Remote }
