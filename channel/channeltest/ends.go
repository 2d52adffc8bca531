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

// end is one end of a channel under test. It holds a mutex in every call, which its done functions
// lock too, and counts the calls of done.
type end struct {
	t      *testing.T
	role   channel.Role
	ch     channel.Channel
	broken chan error // the first error given to Link.Broken

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
	calls  int // of done, guarded by end.mu
	result chan error
}

// open returns the connected ends of a channel. At the end of the test both are closed, and each
// done must have been called once.
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
	e := &end{t: t, role: role, broken: make(chan error, 1), aborted: make(map[uint64]bool)}
	link := channel.Link{
		Native: b.native,
		Conns:  w.conns,
		Peer:   "peer of " + role.String(),
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

// firstID returns the first id of an end's sends in the native dialect, in which both directions
// have distinct ids.
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

// storeBroken keeps the first error, from the channel or from the Mover of its host memory.
func (e *end) storeBroken(err error) {
	select {
	case e.broken <- err:
	default:
	}
}

// wantBroken waits for the first error given to Broken and returns it.
func (e *end) wantBroken() error {
	e.t.Helper()
	err := testwait.Finish(e.t, e.broken)
	e.storeBroken(err) // for later calls
	return err
}

// wantUnbroken checks that Broken was not called.
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

// begin begins a transfer, and aborts it at once if the peer has aborted it.
func (e *end) begin(what string, id uint64, b device.Buffer) *transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	tr := e.track(what, id)
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

// abort aborts a transfer and notifies the peer, as a native pipe does.
func (e *end) abort(id uint64, cause error) {
	if known := e.abortLocal(id, cause); known && e.peer != nil {
		e.peer.abortFromPeer(id)
	}
}

// abortLocal aborts a transfer and reports whether it was in progress.
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

// close closes the channel and checks that each done was called once.
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

func (tr *transfer) done(err error) {
	tr.end.mu.Lock()
	defer tr.end.mu.Unlock()
	tr.calls++
	if tr.calls > 1 {
		tr.end.t.Errorf("%v: done(%v) is call %d", tr, err, tr.calls)
		return
	}
	tr.result <- err
}

// wait returns the error given to done.
func (tr *transfer) wait() error {
	tr.end.t.Helper()
	return testwait.Finish(tr.end.t, tr.result)
}

func (tr *transfer) wantOK() {
	tr.end.t.Helper()
	require.NoError(tr.end.t, tr.wait(), tr.String())
}

// isDone reports whether done was called.
func (tr *transfer) isDone() bool { return len(tr.result) > 0 }

// wantOK waits until all transfers have succeeded.
func wantOK(transfers ...*transfer) {
	for _, tr := range transfers {
		tr.end.t.Helper()
		tr.wantOK()
	}
}
