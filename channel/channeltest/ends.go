package channeltest

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// end is one end of a channel under test. It holds a mutex in every call of the channel but Close.
// The done functions of its transfers lock that mutex too, and count their calls.
type end struct {
	t      *testing.T
	role   channel.Role
	ch     channel.Channel
	broken chan error // the first error given to Link.Broken
	b      Backend

	mu        sync.Mutex
	sends     uint64 // next id
	recvs     uint64
	transfers []*transfer
	breaks    int  // calls of Link.Broken
	closed    bool // Close has returned

	// In the native dialect:
	host    *bulk.Mover
	peer    *end            // nil if the test itself is the peer
	aborted map[uint64]bool // ids that the peer has aborted
}

// transfer is one Send or Recv of a test.
type transfer struct {
	end    *end
	what   string
	id     uint64
	buf    device.Buffer
	calls  int // of done, guarded by end.mu
	result chan error
}

// open returns the two connected ends of a new channel in the dialect of b. At the end of the test
// both ends are closed, and the test fails unless each done has been called exactly once.
func open(t *testing.T, b Backend) (connect, listen *end) {
	t.Helper()
	near, far := connections(t, b)
	return openOn(t, b, near, far)
}

func openOn(t *testing.T, b Backend, near, far linkParts) (connect, listen *end) {
	t.Helper()
	connect, listen = openEnd(t, b, channel.RoleConnect, near), openEnd(t, b, channel.RoleListen, far)
	if b.native {
		connect.peer, listen.peer = listen, connect
	}
	return connect, listen
}

func openEnd(t *testing.T, b Backend, role channel.Role, w linkParts) *end {
	t.Helper()
	e := &end{t: t, role: role, broken: make(chan error, 1), aborted: make(map[uint64]bool), b: b}
	link := channel.Link{
		Native: b.native,
		Conns:  w.conns,
		Peer:   "peer of " + role.String(),
		Remote: b.New(t).DeviceDescriptors(),
		Broken: e.onBroken,
		Logger: slog.New(slog.DiscardHandler),
	}
	if b.native {
		e.host, link.Host = w.host(e.storeBroken)
		e.sends, e.recvs = firstID(role), firstID(1-role)
	}
	ch, err := b.New(t).New(t.Context(), link, role)
	require.NoError(t, err)
	e.ch = ch
	t.Cleanup(func() { e.close(nil) })
	return e
}

// firstID returns the id of the first Send of the end with role sender, in the native dialect: 0
// for RoleConnect, 1<<63 for RoleListen. The ids of the two directions must differ there.
func firstID(sender channel.Role) uint64 { return uint64(sender) << 63 }

func (e *end) onBroken(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.breaks++
	switch {
	case e.breaks > 1:
		e.t.Errorf("%v: Broken(%v) is call %d", e.role, err, e.breaks)
		return
	case e.closed || err == nil:
		e.t.Errorf("%v: Broken(%v), after Close returned: %v", e.role, err, e.closed)
	}
	e.storeBroken(err)
}

// storeBroken stores err in e.broken, from which wantBroken reads it. If an error is stored
// already, it drops err. The channel and the Mover of its host memory report their errors with it.
func (e *end) storeBroken(err error) {
	select {
	case e.broken <- err:
	default:
	}
}

// wantBroken waits until the channel, or the Mover of its host memory, has reported that it is
// broken, and returns the first error that was reported; a later call returns the same one. The
// test fails if none is reported within testwait.Limit.
func (e *end) wantBroken() error {
	e.t.Helper()
	err := testwait.Finish(e.t, e.broken)
	e.storeBroken(err) // for later calls
	return err
}

// wantUnbroken fails the test if the channel, or the Mover of its host memory, has reported that it
// is broken.
func (e *end) wantUnbroken() {
	e.t.Helper()
	require.Empty(e.t, e.broken, "%v: Broken was called", e.role)
}

func (e *end) send(src device.Buffer) *transfer {
	tr := e.sendAs(e.sends, src)
	e.sends++
	return tr
}

func (e *end) recv(dst device.Buffer) *transfer {
	tr := e.recvAs(e.recvs, dst)
	e.recvs++
	return tr
}

func (e *end) sendAs(id uint64, src device.Buffer) *transfer { return e.begin("send", id, src) }

func (e *end) recvAs(id uint64, dst device.Buffer) *transfer { return e.begin("recv", id, dst) }

// begin calls Send of the channel with id and b if what equals "send", and otherwise Recv, and
// returns the transfer. If the peer has already aborted that id, begin aborts the transfer at once.
func (e *end) begin(what string, id uint64, b device.Buffer) *transfer {
	if p, ok := e.allocatorOf(b); ok && what == "recv" && p.strict != nil {
		for range p.strict.LateTarget {
			p.poison(b)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	tr := e.track(what, id)
	tr.buf = b
	if what == "send" {
		e.ch.Send(id, b, tr.done)
	} else {
		e.ch.Recv(id, b, tr.done)
	}
	if e.aborted[id] {
		e.ch.Abort(id, channel.ErrAborted)
	}
	return tr
}

// abort aborts the transfers with that id at this end with cause. In the native dialect it then
// aborts them at the peer too, if one was in progress here, as a native pipe does.
func (e *end) abort(id uint64, cause error) {
	if known := e.abortLocal(id, cause); known && e.peer != nil {
		e.peer.abortFromPeer(id)
	}
}

// abortLocal aborts the transfers with that id at this end only, with cause. It reports whether one
// of them was not done when Abort of the channel had returned.
func (e *end) abortLocal(id uint64, cause error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ch.Abort(id, cause)
	return slices.ContainsFunc(e.transfers, func(tr *transfer) bool { return tr.id == id && tr.calls == 0 })
}

func (e *end) abortFromPeer(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.aborted[id] = true
	e.ch.Abort(id, channel.ErrAborted)
}

func (e *end) track(what string, id uint64) *transfer {
	tr := &transfer{end: e, what: what, id: id, result: make(chan error, 2)}
	e.transfers = append(e.transfers, tr)
	return tr
}

// close closes the channel, and in the native dialect also the Mover of its host memory, with
// cause, and waits for that. The test fails unless done was then called exactly once for each
// transfer.
func (e *end) close(cause error) {
	e.t.Helper()
	testwait.Finish(e.t, testwait.Start(func() error { return e.ch.Close(cause) }))
	if e.host != nil {
		testwait.Finish(e.t, testwait.Start(func() error { return e.host.Close(cause) }))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, tr := range e.transfers {
		if tr.calls != 1 {
			e.t.Errorf("%v: %d calls of done after Close", tr, tr.calls)
		}
	}
}

func (tr *transfer) String() string { return fmt.Sprintf("%v: %s %d", tr.end.role, tr.what, tr.id) }

// done is the function of the transfer.
func (tr *transfer) done(err error) {
	tr.use(err)
	tr.end.mu.Lock()
	defer tr.end.mu.Unlock()
	tr.calls++
	if tr.calls > 1 {
		tr.end.t.Errorf("%v: done(%v) is call %d", tr, err, tr.calls)
		return
	}
	tr.result <- err
}

// wait blocks until done has been called and returns the error that done was given. It may be
// called once per transfer. The test fails if done is not called within testwait.Limit.
func (tr *transfer) wait() error {
	tr.end.t.Helper()
	return testwait.Finish(tr.end.t, tr.result)
}

// allocatorOf returns an allocator for copies with b. It returns false if b has no stream or is large.
func (e *end) allocatorOf(b device.Buffer) (p allocator, ok bool) {
	s := b.Stream()
	if s == nil || b.Len() == 0 || b.Len() > mostPageLocked {
		return p, false
	}
	p = allocator{t: e.t, device: b.Device(), strict: e.b.Strict}
	for _, k := range e.b.Kinds {
		if k.Name() == s.Device().Kind {
			p.kind = k
		}
	}
	if b.IsHost() {
		p.streams, p.streamDevice = p.kind, s.Device()
	}
	return p, true
}

// use uses memory that has a stream as an application may when its transfer is done: that of a
// Send is overwritten, and, if tests are strict, that of a Recv is read and written again.
func (tr *transfer) use(err error) {
	p, ok := tr.end.allocatorOf(tr.buf)
	switch {
	case !ok:
	case tr.what == "send":
		p.poison(tr.buf)
	case err == nil:
		if between, ok := p.pageLocked(tr.buf.Len(), tr.buf.Stream()); ok {
			p.copy(between, tr.buf)
			p.copy(tr.buf, between)
		}
	}
}

func (tr *transfer) wantOK() {
	tr.end.t.Helper()
	require.NoError(tr.end.t, tr.wait(), tr.String())
}

// isDone reports whether done was called and wait has not yet returned its error.
func (tr *transfer) isDone() bool { return len(tr.result) > 0 }

// wantOK waits until done has been called for each of transfers, and fails the test at the first
// that has an error.
func wantOK(transfers ...*transfer) {
	for _, tr := range transfers {
		tr.end.t.Helper()
		tr.wantOK()
	}
}
