package channeltest

import (
	"context"
	"sync"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// linkParts are the parts of a channel.Link that the suite creates for one end.
type linkParts struct {
	conns []transport.Conn

	// In the native dialect:
	session transport.Session // whose streams conns use
	bulk    transport.Stream  // for host memory
	sends   *readyRelay       // of this end
	recvs   *readyRelay       // of the peer
}

// connections returns new connected parts for the two ends of one channel of b, with as many
// connections as the channel needs in the dialect of b.
func connections(t *testing.T, b Backend) (connect, listen linkParts) {
	t.Helper()
	return newLinkParts(t, b, b.New(t).Connections(b.native))
}

// newLinkParts returns new connected parts for the two ends of a channel, with conns connections,
// in the dialect of b. All connections are closed at the end of the test.
func newLinkParts(t *testing.T, b Backend, conns int) (connect, listen linkParts) {
	t.Helper()
	if b.native {
		return newNativeLinkParts(t, b, conns)
	}
	for range conns {
		c, l := b.Connect(t)
		connect.conns, listen.conns = append(connect.conns, c), append(listen.conns, l)
	}
	return connect, listen
}

func newNativeLinkParts(t *testing.T, b Backend, conns int) (connect, listen linkParts) {
	t.Helper()
	s := newSessions(t, b, conns)
	connect.session, listen.session = s.connect, s.listen
	for range conns {
		c, l := s.conn()
		connect.conns, listen.conns = append(connect.conns, c), append(listen.conns, l)
	}
	connect.bulk, listen.bulk = s.bulk(b)
	connect.sends, connect.recvs = newReadyRelay(), newReadyRelay()
	listen.sends, listen.recvs = connect.recvs, connect.sends
	return connect, listen
}

// close closes all connections of w, as the death of a process does: in the native dialect the
// session and the bulk stream, otherwise each connection.
func (w linkParts) close() {
	if w.session != nil {
		w.session.Close()
		w.bulk.Close()
		return
	}
	for _, c := range w.conns {
		c.Close()
	}
}

// host returns a new Mover for host memory over w.bulk, and its lane for the channel under test,
// for Link.Host. The Mover calls broken with its error if it fails. The caller must close the
// Mover.
func (w linkParts) host(broken func(error)) (*bulk.Mover, channel.Channel) {
	m := bulk.New(bulk.Config{
		Open:   func(context.Context) (transport.Stream, error) { return w.bulk, nil },
		Ready:  func(_ uint16, id uint64) { w.recvs.notify(id) },
		Broken: broken,
		Peer:   "peer",
	})
	w.sends.serve(m)
	return m, &hostChannel{Channel: m.Lane(hostLane), sends: w.sends}
}

// hostLane is the lane of the channel under test.
const hostLane = 1

// hostChannel is a lane that reports its sends to a readyRelay.
type hostChannel struct {
	channel.Channel
	sends *readyRelay
}

func (h *hostChannel) Send(id uint64, src device.Buffer, done func(error)) {
	h.Channel.Send(id, src, done)
	h.sends.begin(id)
}

// readyRelay forwards READY to the sender of one end once the Send has begun, as a pipe does. Tests
// may call Recv before Send.
type readyRelay struct {
	mu    sync.Mutex
	mover *bulk.Mover     // of the sender, or nil
	begun map[uint64]bool // by id
	early map[uint64]bool // READY received before the Send
}

func newReadyRelay() *readyRelay {
	return &readyRelay{begun: make(map[uint64]bool), early: make(map[uint64]bool)}
}

func (r *readyRelay) serve(m *bulk.Mover) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mover = m
}

func (r *readyRelay) begin(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun[id] = true
	if r.early[id] {
		r.mover.HandleReady(hostLane, id)
	}
}

func (r *readyRelay) notify(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun[id] {
		r.mover.HandleReady(hostLane, id)
	} else {
		r.early[id] = true
	}
}
