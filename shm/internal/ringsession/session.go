// Package ringsession implements a session of streams between two processes of one machine,
// through memory that both have mapped.
//
// # Rings
//
// A stream is two rings, one for each direction. A ring has one writer and one reader, which share
// two counters that only grow: the number of bytes written and the number of bytes read. Each end
// keeps its own counter in private memory too, and checks the other one's before it relies on
// it. A ring has several regions of different sizes. It begins with the smallest, and grows
// and shrinks with the traffic: see growth.go.
//
// The memory is sealed, so that the peer cannot truncate it, and an end reserves pages before it
// touches them. A fault for lack of memory is possible only if the peer gives pages back while
// the system has no others.
//
// # Waiting
//
// A call that can do nothing polls for a while (package wait). Then it sets a flag in the ring, checks
// once more, and blocks. The other end, when it changes something, checks the flag, clears it, and
// sends a doorbell: two bytes through a Unix socket, which name the stream and the event. So there
// is at most one doorbell for each time that a call blocks, and a peer that is stopped has few
// bytes waiting in its socket. The socket also passes the segments, and its end shows that the peer
// has died.
//
// # Slots
//
// Each end creates the segments for the streams that it opens, unless the segment was prepared with
// [CreateSegment]. A segment is divided into slots. A stream has its two rings in one slot, which is
// used for another stream after both ends have closed this one.
package ringsession

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrCorrupt matches errors about a peer that violates the protocol. It matches
// [transport.ErrFrame], by which a pipe recognizes such errors.
var ErrCorrupt error = corruptError{}

type corruptError struct{}

func (corruptError) Error() string { return "peer broke the protocol of shared rings" }
func (corruptError) Unwrap() error { return transport.ErrFrame }

// Addresses are the addresses that the streams of a session return as LocalAddr and RemoteAddr.
type Addresses struct{ Local, Remote net.Addr }

// Session is a session of streams between two processes. It implements [transport.Session].
type Session struct {
	peer           peerSocket
	addresses      Addresses
	poller         *wait.MemoryPoller
	busy           bool // calls wait with busy polling
	maxPeerStreams int
	budget         transport.Budget
	accepted       chan *stream // opened by the peer, for Accept
	receiving      sync.WaitGroup
	shrinker       shrinker

	opening sync.Mutex // serializes Open, which may block until the peer reads from the socket

	mu          sync.Mutex
	closed      bool
	segments    []*segment.Segment
	opened      bool    // this end has opened a stream, which uses its first slot
	localSlots  []*slot // for streams that this end opens
	peerSlots   []*slot // for streams that the peer opens
	streams     map[*stream]*slot
	peerStreams int // open streams of peerSlots
}

var _ transport.Session = (*Session)(nil)

// NewSession returns a session through the connected Unix socket sock. The session owns sock; after
// an error the caller keeps it. The peer calls NewSession too. The session may write to sock at
// once. It reads from sock after ready is closed, when the peer's first doorbell must be the next
// thing to read; Close blocks until then. cfg bounds the streams and the memory. waits determines how
// calls wait. The streams return the addresses a. The error is that of
// accessing the socket.
//
// A ring holds at most 656 KiB for the first stream of an end and for bulk streams, and 84 KiB for
// others. After much traffic the former hold 2 MiB more, which the writing end acquires from
// cfg.Budget, if that is not nil, and releases when the ring shrinks or the stream is closed.
func NewSession(
	sock *net.UnixConn, ready <-chan struct{}, cfg transport.SessionConfig, waits wait.Config, a Addresses,
) (*Session, error) {
	return NewSessionWithSegment(nil, sock, ready, cfg, waits, a)
}

// NewSessionWithSegment returns a session as [NewSession] does. Both ends use seg, a segment
// prepared by [CreateSegment], for the streams that the client opens. The session owns seg, which
// is closed after an error. If seg is nil, at both ends, it is the same as NewSession. The error
// can also mean that seg does not have the size for cfg.MaxStreams.
func NewSessionWithSegment(
	seg *segment.Segment, sock *net.UnixConn, ready <-chan struct{},
	cfg transport.SessionConfig, waits wait.Config, a Addresses,
) (*Session, error) {
	s := &Session{
		addresses:      a,
		poller:         wait.NewMemoryPoller(waits.Spin),
		busy:           waits.Busy,
		maxPeerStreams: min(cfg.MaxStreams, maxSlots/2),
		budget:         cfg.Budget,
		streams:        make(map[*stream]*slot),
	}
	s.accepted = make(chan *stream, s.maxPeerStreams)
	err := s.useSegment(seg, cfg)
	if err == nil {
		err = s.peer.init(sock)
	}
	if err != nil {
		s.closeSegments()
		return nil, err
	}
	s.receiving.Go(func() {
		<-ready
		s.peer.receive(s)
		for _, st := range s.openStreams() {
			st.wake()
		}
	})
	return s, nil
}

// Open implements [transport.Session]: it opens a stream to the peer. The stream has small rings,
// unless it is the first one that this end opens. If this end has too many streams, Open returns a
// stream whose reads and writes fail with ECONNRESET. The error is the reason of the session's end,
// or that of creating memory or passing it to the peer.
func (s *Session) Open() (transport.Stream, error) { return s.open(smallRing) }

// OpenBulk implements [transport.Session]. It opens a stream with large rings, and otherwise does
// what Open does.
func (s *Session) OpenBulk() (transport.Stream, error) { return s.open(largeRing) }

// open opens a stream with rings of that kind and notifies the peer. The first stream of an end
// always gets large rings. Before that open closes the streams of this end that the peer has
// refused or aborted, so that their slots can be used. If this end has too many streams, open
// returns no error but a stream whose reads and writes fail as if the peer had refused it. The
// error is the reason of the session's end, or that of acquireSlot or openAt. The caller holds
// neither opening nor mu.
func (s *Session) open(kind ringKind) (transport.Stream, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if err := s.peer.failure(); err != nil {
		return nil, err
	}
	for _, st := range s.resetByPeer() {
		st.close(errReset, func() { st.onClose(st) })
	}
	k, err := s.acquireSlot(kind)
	if err != nil {
		return nil, err
	}
	if k < 0 {
		st := newStream(&s.peer, 0, ringPair{}, s.addresses, s.poller, s.busy)
		st.close(errReset, func() {})
		return st, nil
	}
	st, err := s.openAt(k)
	if err != nil {
		return nil, err
	}
	s.peer.notify(st.id | doorbellOpened)
	return st, nil
}

// openAt makes a stream in the free slot number k of this end, and reserves pages for its rings.
// The peer learns of the stream only when the caller sends a doorbell. The error is ErrClosed, or
// that of reserving pages. The caller holds opening; openAt acquires mu.
func (s *Session) openAt(k int) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, transport.ErrClosed
	}
	p := s.localSlots[k]
	if err := p.reserve(); err != nil {
		return nil, err
	}
	p.used, s.opened = true, true
	failpoint.Here()
	p.vacant.Store(0)
	headerOf(p.fromOpener.header).init(p.firstLevel)
	headerOf(p.toOpener.header).init(p.firstLevel)
	failpoint.Here()
	rings := ringPair{in: newRingReader(p.toOpener, p.firstLevel), out: newRingWriter(p.fromOpener, p.firstLevel)}
	return s.addStream(doorbell(k<<doorbellSlotShift)|doorbellOwn, p, rings), nil
}

// resetByPeer returns the streams opened by this end that the peer has refused or aborted and that
// are not closed here, so that their slots are still in use. It returns nil after Close. It
// acquires mu.
func (s *Session) resetByPeer() (all []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil // the memory is no longer mapped
	}
	for st, p := range s.streams {
		if st.id.own() && p.vacant.Load() != 0 && headerOf(p.toOpener.header).writerState.Load() == reset {
			all = append(all, st)
		}
	}
	return all
}

// addStream returns a new stream with these rings, which lie in slot p, and adds it to the session.
// id is the stream's number in doorbells. The session removes the stream when it is closed. The
// caller marks p as used and holds mu.
func (s *Session) addStream(id doorbell, p *slot, rings ringPair) *stream {
	st := newStream(&s.peer, id, rings, s.addresses, s.poller, s.busy)
	st.onClose = s.removeStream
	rings.out.growth.onGrow = func() { s.shrinker.schedule(s.shrinkIdle) }
	rings.out.growth.budget = s.budget
	s.streams[st] = p
	p.stream = st
	return st
}

// acquireSlot returns the number of a free slot of this end with rings of that kind, or of any kind
// for its first stream. If none is free it creates a segment that has such a slot, sends the
// segment to the peer, which can block, and adds the segment's slots to the session. It returns -1
// and no error if this end has too many slots. The error is ErrClosed after Close, or that of
// creating or sending the segment (closeReason). The caller holds opening; acquireSlot acquires mu.
func (s *Session) acquireSlot(kind ringKind) (int, error) {
	k, found, err := s.findFreeSlot(kind)
	if err != nil || found {
		return k, err
	}
	if k >= 2*s.maxPeerStreams {
		return -1, nil
	}
	kinds := []ringKind{kind}
	if k == 0 {
		kinds = firstSegmentKinds
	}
	seg, err := createSegment(kinds)
	if err != nil {
		return 0, err
	}
	if err := s.peer.sendSegment(seg.File()); err != nil {
		seg.Close()
		return 0, closeReason(err)
	}
	_ = seg.CloseFile()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		seg.Close()
		return 0, transport.ErrClosed
	}
	s.segments = append(s.segments, seg)
	added := slotsIn(seg.Bytes(), kinds)
	for _, p := range added {
		p.vacant.Store(1)
	}
	s.localSlots = append(s.localSlots, added...)
	return k, nil
}

// findFreeSlot returns the number of a free slot of this end with rings of that kind, and true. If
// there is none it returns the number that the next slot will get, and false. For the first stream
// of an end, rings of any kind will do. The error is ErrClosed after Close. It acquires mu.
func (s *Session) findFreeSlot(kind ringKind) (k int, found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, false, transport.ErrClosed
	}
	for k, p := range s.localSlots {
		if !p.used && p.vacant.Load() != 0 && (p.kind == kind || !s.opened) {
			return k, true, nil
		}
	}
	return len(s.localSlots), false, nil
}

// handleSegment implements doorbellHandler: it maps the peer's next segment, whose file is f, so
// that the peer can open streams in its slots, and closes f. The error matches ErrCorrupt if the
// segment is invalid or the peer has too many slots, and is otherwise that of mapping it. It
// acquires mu.
func (s *Session) handleSegment(f *os.File) error {
	defer f.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	k := len(s.peerSlots)
	if k >= 2*s.maxPeerStreams {
		return fmt.Errorf("%w: more than %d slots", ErrCorrupt, k)
	}
	candidates := [][]ringKind{{smallRing}, {largeRing}}
	if k == 0 {
		candidates = [][]ringKind{firstSegmentKinds}
	}
	var sizes []int
	for _, kinds := range candidates {
		sizes = append(sizes, segmentSize(kinds...))
	}
	seg, err := mapSegment(f, sizes)
	if err != nil {
		return err
	}
	s.segments = append(s.segments, seg)
	kinds := candidates[slices.Index(sizes, len(seg.Bytes()))]
	s.peerSlots = append(s.peerSlots, slotsIn(seg.Bytes(), kinds)...)
	return nil
}

// handleDoorbell implements doorbellHandler: it wakes the reader or the writer of the stream that d
// names, or adds a stream that the peer has opened. It ignores a doorbell for a stream that the
// session does not have, and the doorbell of a segment, which handleSegment has handled. The error
// is that of handleOpened, which matches ErrCorrupt if the peer violated the protocol. It acquires
// mu.
func (s *Session) handleDoorbell(d doorbell) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch d.event() {
	case doorbellSegment:
		return nil // handleSegment has been called
	case doorbellOpened:
		return s.handleOpened(d)
	}
	slots, k := s.localSlots, d.slot()
	if d.own() {
		slots = s.peerSlots
	}
	switch {
	case k >= len(slots) || slots[k].stream == nil:
	case d.event() == doorbellReadable:
		slots[k].stream.read.wake()
	default:
		slots[k].stream.write.wake()
	}
	return nil
}

// handleOpened adds the stream that the peer has opened in the slot of d. It queues the stream for
// Accept, or resets and closes it if the peer has too many or the session is closed. The error
// matches ErrCorrupt if the slot is not one that the peer may use now, and is otherwise that of
// reserving pages. The caller holds mu, which handleOpened may release for a moment.
func (s *Session) handleOpened(d doorbell) error {
	k := d.slot()
	if !d.own() || k >= len(s.peerSlots) || s.peerSlots[k].used {
		return fmt.Errorf("%w: a stream in slot %d", ErrCorrupt, k)
	}
	p := s.peerSlots[k]
	if err := p.reserve(); err != nil {
		return err
	}
	rings := ringPair{in: newRingReader(p.fromOpener, p.firstLevel), out: newRingWriter(p.toOpener, p.firstLevel)}
	st := s.addStream(doorbell(k<<doorbellSlotShift), p, rings)
	p.used = true
	s.peerStreams++
	if s.peerStreams <= s.maxPeerStreams && !s.closed {
		s.accepted <- st // does not block: it has capacity for all open streams of the peer
		return nil
	}
	st.write.mu.Lock()
	st.endWriting(reset)
	st.write.mu.Unlock()
	s.mu.Unlock() // Close acquires it
	_ = st.Close()
	s.mu.Lock()
	return nil
}

// removeStream removes a closed stream from the session, releases the pages by which its rings have
// grown, and marks its slot as unused by this end. The end that opened the stream may use the slot
// again once both ends have done so. The caller holds both mutexes of the stream, and not mu.
func (s *Session) removeStream(st *stream) {
	st.rings.releaseGrown()
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.streams[st]
	delete(s.streams, st)
	p.used, p.stream = false, nil
	if !st.id.own() {
		s.peerStreams--
		failpoint.Here()
		p.vacant.Store(1) // from here on the peer may use the slot again
		failpoint.Here()
	}
}

// Accept implements [transport.Session]: it blocks until the peer has opened a stream, and returns
// the stream. If ctx has ended before the call, it returns the cause of ctx. After the session has
// ended it first returns the streams that arrived before, unless Close was called. The error is the
// cause of ctx, the reason of the session's end, or ErrClosed after Close.
func (s *Session) Accept(ctx context.Context) (transport.Stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var st *stream
	select {
	case st = <-s.accepted:
	default:
		select {
		case st = <-s.accepted:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.peer.done:
			select { // streams that arrived before the end
			case st = <-s.accepted:
			default:
				return nil, s.peer.failure()
			}
		}
	}
	if closed := st.closed.Load(); closed != nil {
		return nil, *closed
	}
	return st, nil
}

// Done implements [transport.Session]. It returns a channel that is closed when the session ends;
// from then on Err returns the reason.
func (s *Session) Done() <-chan struct{} { return s.peer.done }

// Err implements [transport.Session]: it returns why the session has ended, or nil while it is
// open. The reason is ErrClosed if Close has ended it, and io.EOF if the peer closed or died. It
// matches ErrCorrupt if the peer violated the protocol.
func (s *Session) Err() error { return s.peer.failure() }

// Flush implements [transport.Session]. It does not block and does not use ctx: written bytes are in
// memory that the peer shares, where it can read them after Close too. It returns what Err returns.
func (s *Session) Flush(context.Context) error { return s.Err() }

// Close implements [transport.Session]. It closes the socket and all streams, waits until their
// reads and writes and the session's goroutine have returned, and unmaps the segments. It returns
// nil. The goroutine returns only after the channel given to NewSession is closed.
func (s *Session) Close() error {
	s.peer.end(transport.ErrClosed)
	s.receiving.Wait()
	s.shrinker.stop()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, st := range s.openStreams() {
		st.close(transport.ErrClosed, func() {}) // the peer sees the end of the socket
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

func (s *Session) openStreams() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.streams))
}
