package mpt

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// maxStrangers is how many connections may have come without having said
	// which lane they are, beside one for each lane that is expected.
	maxStrangers = 64

	// strangerLimit is for how long they may keep that to themselves.
	strangerLimit = 10 * time.Second

	// maxHello is the size of the longest ClientHello.
	maxHello = 16
)

// portKey names a port: a group of lanes and where to listen for it.
type portKey struct {
	group int
	addr  string
}

// port is a listener, and who waits for lanes to come there. It exists while
// somebody does.
type port struct {
	factory  *Factory
	key      portKey
	listener transport.Listener
	ctx      context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	// Guarded by Factory.mu:
	tickets   int                // not released
	waiting   map[uint64]*ticket // those to which no connection has come
	strangers int
}

// open returns the port of that name, new or shared. The caller holds mu.
func (f *Factory) open(ctx context.Context, key portKey) (*port, error) {
	if p := f.ports[key]; p != nil {
		return p, nil
	}
	l, err := f.groups[key.group].Transport.Listen(ctx, key.addr)
	if err != nil {
		return nil, unopened(ctx, err)
	}
	p := &port{factory: f, key: key, listener: l, waiting: make(map[uint64]*ticket)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	f.ports[key] = p
	p.work.Go(p.accept)
	return p, nil
}

// close ends everything at the port, which may run on for a moment: nobody holds
// a ticket any more. The caller holds mu, so that the address is free for the
// next port.
func (p *port) close() {
	delete(p.factory.ports, p.key)
	p.stop()
	_ = p.listener.Close()
}

// accept lets strangers in. An error such as a full table of descriptors passes.
func (p *port) accept() {
	const firstPause, lastPause = 5 * time.Millisecond, time.Second
	pause := firstPause
	for {
		conn, err := p.listener.Accept(p.ctx)
		switch {
		case p.ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil:
			sleep(p.ctx, pause)
			pause = min(2*pause, lastPause)
		case !p.admit():
			_ = conn.Close()
		default:
			pause = firstPause
			p.work.Go(func() { p.welcome(conn) })
		}
	}
}

// sleep waits for d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// admit takes a place for a stranger, if there is one.
func (p *port) admit() bool {
	p.factory.mu.Lock()
	defer p.factory.mu.Unlock()
	if p.strangers >= maxStrangers+len(p.waiting) {
		return false
	}
	p.strangers++
	return true
}

// leave gives up the place of a stranger who has spoken, or had the time to.
func (p *port) leave() {
	p.factory.mu.Lock()
	defer p.factory.mu.Unlock()
	p.strangers--
}

// welcome finds out which lane a stranger is.
func (p *port) welcome(conn transport.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, strangerLimit)
	defer cancel()
	unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	id, err := readClientHello(conn)
	p.leave() // before a lane is no longer expected, which makes one place fewer
	if !unwatch() || err != nil || !p.deliver(id, conn) {
		_ = conn.Close()
	}
}

// deliver gives a connection to who waits for it. It reports false where nobody
// does.
func (p *port) deliver(id uint64, conn transport.Conn) bool {
	p.factory.mu.Lock()
	defer p.factory.mu.Unlock()
	t := p.waiting[id]
	if t == nil {
		return false
	}
	delete(p.waiting, id)
	t.conn <- conn
	return true
}

// readClientHello reads what each lane begins with.
func readClientHello(conn transport.Conn) (id uint64, err error) {
	text, err := readFrame(conn, nil, maxHello)
	if err != nil {
		return 0, err
	}
	hello, err := wire.DecodeMPTHello(text, wire.Limits{})
	if err != nil {
		return 0, err
	}
	client, ok := hello.(wire.MPTClientHello)
	if !ok {
		return 0, protocolError("a lane begins with a %T", hello)
	}
	return client.RegistrationID, nil
}

// ticket is the claim to one lane to come.
type ticket struct {
	port *port
	id   uint64
	conn chan transport.Conn
}

// expect makes up an id for a lane to come. The caller holds mu.
func (p *port) expect() *ticket {
	t := &ticket{port: p, id: randomID(), conn: make(chan transport.Conn, 1)}
	for p.waiting[t.id] != nil {
		t.id = randomID()
	}
	p.waiting[t.id] = t
	p.tickets++
	return t
}

func randomID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // which never fails
	return binary.LittleEndian.Uint64(b[:])
}

// wait returns the lane when it has come.
func (t *ticket) wait(ctx context.Context) (transport.Conn, error) {
	select {
	case conn := <-t.conn:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// release gives up the claim, to be called once, and closes a lane that nobody
// took. The last one closes the port.
func (t *ticket) release() {
	f, p := t.port.factory, t.port
	f.mu.Lock()
	delete(p.waiting, t.id)
	p.tickets--
	last := p.tickets == 0
	if last {
		p.close()
	}
	f.mu.Unlock()
	select {
	case conn := <-t.conn:
		_ = conn.Close()
	default:
	}
	if last {
		p.work.Wait()
	}
}
