package pipe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// rendezvous matches the connections that a client opens after the handshake
// with the pipe that waits for them. Each carries an id that the listening end
// made up; ids are random so that a stranger cannot take the place of a
// client's connection by counting.
type rendezvous struct {
	mu      sync.Mutex
	waiting map[uint64]*ticket
	count   *atomic.Int64 // of waiting, in all rendezvous of a context
	newID   func() uint64
}

func newRendezvous(count *atomic.Int64) *rendezvous {
	return &rendezvous{waiting: map[uint64]*ticket{}, count: count, newID: randomID}
}

func randomID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// expect makes up an id for a connection to come over a transport.
func (r *rendezvous) expect(transportName string) *ticket {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.newID()
	for r.waiting[id] != nil {
		id = r.newID()
	}
	t := &ticket{id: id, transport: transportName, conn: make(chan transport.Conn, 1), home: r}
	r.waiting[id] = t
	r.count.Add(1)
	return t
}

// deliver hands over a connection that brought an id. It reports false for an
// id that nobody waits for, that another connection has used, or that came over
// another transport than the one agreed on.
func (r *rendezvous) deliver(id uint64, transportName string, conn transport.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.waiting[id]
	if t == nil || t.transport != transportName {
		return false
	}
	r.remove(id)
	t.conn <- conn
	return true
}

func (r *rendezvous) remove(id uint64) {
	if r.waiting[id] != nil {
		delete(r.waiting, id)
		r.count.Add(-1)
	}
}

// ticket is the claim to one connection to come.
type ticket struct {
	id        uint64
	transport string
	conn      chan transport.Conn
	home      *rendezvous
}

func (t *ticket) wait(ctx context.Context) (transport.Conn, error) {
	select {
	case c := <-t.conn:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// cancel gives up the claim and closes a connection that came unclaimed.
func (t *ticket) cancel() {
	t.home.mu.Lock()
	t.home.remove(t.id)
	t.home.mu.Unlock()
	select {
	case c := <-t.conn:
		c.Close()
	default:
	}
}
