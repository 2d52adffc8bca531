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

// wires is what one end of a channel gets from a pipe.
type wires struct {
	conns []transport.Conn

	// In the native dialect:
	session transport.Session // that conns are streams of
	bulk    transport.Stream  // for host memory
	sends   *readiness        // of this end
	recvs   *readiness        // of this end, the peer's sends
}

// connections returns what the two ends of a channel need.
func connections(t *testing.T, b Backend) (connect, listen wires) {
	t.Helper()
	return wire(t, b, b.New(t).Connections(b.native))
}

// wire returns what the ends of a channel with so many connections need.
func wire(t *testing.T, b Backend, conns int) (connect, listen wires) {
	t.Helper()
	if b.native {
		return wireNative(t, b, conns)
	}
	for range conns {
		c, l := b.Connect(t)
		connect.conns, listen.conns = append(connect.conns, c), append(listen.conns, l)
	}
	return connect, listen
}

func wireNative(t *testing.T, b Backend, conns int) (connect, listen wires) {
	t.Helper()
	s := newSessions(t, b, conns)
	connect.session, listen.session = s.connect, s.listen
	for range conns {
		c, l := s.conn()
		connect.conns, listen.conns = append(connect.conns, c), append(listen.conns, l)
	}
	connect.bulk, listen.bulk = s.bulk(b)
	connect.sends, connect.recvs = newReadiness(), newReadiness()
	listen.sends, listen.recvs = connect.recvs, connect.sends
	return connect, listen
}

// close ends all connections, as the death of a process does.
func (w wires) close() {
	if w.session != nil {
		w.session.Close()
		w.bulk.Close()
		return
	}
	for _, c := range w.conns {
		c.Close()
	}
}

// host makes a Mover, and what the channel gets of it.
func (w wires) host(broken func(error)) (*bulk.Mover, channel.Channel) {
	m := bulk.New(bulk.Config{
		Open:   func(context.Context) (transport.Stream, error) { return w.bulk, nil },
		Ready:  func(_ uint16, id uint64) { w.recvs.tell(id) },
		Broken: broken,
		Peer:   "peer",
	})
	w.sends.serve(m)
	return m, &host{Channel: m.Lane(hostLane), sends: w.sends}
}

// hostLane is that of the channel under test.
const hostLane = 1

// host is a lane that says which transfers it knows.
type host struct {
	channel.Channel
	sends *readiness
}

func (h *host) Send(id uint64, src device.Buffer, done func(error)) {
	h.Channel.Send(id, src, done)
	h.sends.begin(id)
}

// readiness is what a pipe does for the sends of one end: the word that memory
// waits comes when the Send was begun, and not before. Tests are free to
// receive first.
type readiness struct {
	mu    sync.Mutex
	mover *bulk.Mover     // of the sender, once there is one
	begun map[uint64]bool // sends
	early map[uint64]bool // words that came before
}

func newReadiness() *readiness {
	return &readiness{begun: make(map[uint64]bool), early: make(map[uint64]bool)}
}

func (r *readiness) serve(m *bulk.Mover) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mover = m
}

func (r *readiness) begin(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun[id] = true
	if r.early[id] {
		r.mover.TakeReady(hostLane, id)
	}
}

func (r *readiness) tell(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun[id] {
		r.mover.TakeReady(hostLane, id)
	} else {
		r.early[id] = true
	}
}
