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
	// maxUnidentified is the maximum number of connections that have not sent their ClientHello, in
	// addition to one for each expected lane.
	maxUnidentified = 64

	// helloTimeout is the time limit for the ClientHello.
	helloTimeout = 10 * time.Second

	// maxClientHello is the maximum size of a ClientHello.
	maxClientHello = 16
)

// portKey identifies a port: a group of lanes and the address to listen at.
type portKey struct {
	group int
	addr  string
}

// port is a listener with the reservations of lanes that will connect to it. All channels of a factory
// share the ports. A port exists while there are reservations.
type port struct {
	factory  *Factory
	key      portKey
	listener transport.Listener
	ctx      context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	// Guarded by Factory.mu:
	reservations int                     // reservations not released
	waiting      map[uint64]*reservation // reservations without a connection
	unidentified int
}

// open returns the open port with the given key. If there is none, it listens and starts a
// goroutine that accepts connections. The caller holds f.mu, and must call reserve on a new port
// before it releases f.mu, because the release of the last reservation closes the port. The error
// is the cause of ctx, or matches channel.ErrUnopened.
func (f *Factory) open(ctx context.Context, key portKey) (*port, error) {
	if p := f.ports[key]; p != nil {
		return p, nil
	}
	l, err := f.groups[key.group].Transport.Listen(ctx, key.addr)
	if err != nil {
		return nil, wrapUnopened(ctx, err)
	}
	p := &port{factory: f, key: key, listener: l, waiting: make(map[uint64]*reservation)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	f.ports[key] = p
	p.work.Go(p.accept)
	return p, nil
}

// accept accepts connections until the port is closed, and starts a goroutine that identifies each.
// It closes connections that admit rejects. After an error of the listener, such as a lack of
// descriptors, it waits for up to one second and tries again.
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
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-p.ctx.Done():
				t.Stop()
			}
			pause = min(2*pause, lastPause)
		case !p.admit():
			_ = conn.Close()
		default:
			pause = firstPause
			p.work.Go(func() { p.identify(conn) })
		}
	}
}

// admit counts a connection that has just been accepted as unidentified, and returns true. If there
// are too many connections that have not sent their ClientHello, it does not count the connection
// and returns false; the caller must then close it. It locks Factory.mu.
func (p *port) admit() bool {
	p.factory.mu.Lock()
	defer p.factory.mu.Unlock()
	if p.unidentified >= maxUnidentified+len(p.waiting) {
		return false
	}
	p.unidentified++
	return true
}

// identify reads the ClientHello of conn, which must have been counted by admit, and passes conn to
// the reservation with the number in it. It closes conn if no reservation waits with that number,
// or if the ClientHello is invalid or does not arrive within helloTimeout. It locks Factory.mu.
func (p *port) identify(conn transport.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, helloTimeout)
	defer cancel()
	stopWatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	id, err := receiveClientHello(conn)
	inTime := stopWatch()
	p.factory.mu.Lock()
	p.unidentified--
	t := p.waiting[id]
	expected := inTime && err == nil && t != nil
	if expected {
		delete(p.waiting, id)
		t.conn <- conn
	}
	p.factory.mu.Unlock()
	if !expected {
		_ = conn.Close()
	}
}

// receiveClientHello reads a frame of conn and returns the number of the lane in it. The error is
// that of conn, is a *wire.Error, or matches channel.ErrProtocol.
func receiveClientHello(conn transport.Conn) (id uint64, err error) {
	text, err := readFrame(conn, nil, maxClientHello)
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

// reservation is a lane that is expected to connect to a port. Its owner must call release once.
type reservation struct {
	port *port
	id   uint64
	conn chan transport.Conn
}

// reserve returns a new reservation of port p, for one lane, with a random number that no other
// waiting lane has. The caller must call release of the reservation once. The caller holds
// Factory.mu.
func (p *port) reserve() *reservation {
	t := &reservation{port: p, conn: make(chan transport.Conn, 1)}
	for t.id == 0 || p.waiting[t.id] != nil {
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		t.id = binary.LittleEndian.Uint64(id[:])
	}
	p.waiting[t.id] = t
	p.reservations++
	return t
}

// wait blocks until a connection for the reserved lane has come, and returns it; the caller then
// owns it. If ctx ends first, wait returns nil and the cause of ctx.
func (t *reservation) wait(ctx context.Context) (transport.Conn, error) {
	select {
	case conn := <-t.conn:
		return conn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// release ends the reservation, and closes its connection if one has come that wait has not
// returned. It must be called once, without Factory.mu. If the port has no other reservations,
// release also closes the port and waits for its goroutines.
func (t *reservation) release() {
	f, p := t.port.factory, t.port
	f.mu.Lock()
	delete(p.waiting, t.id)
	p.reservations--
	last := p.reservations == 0
	if last { // with mu held, so that the address is free for the next port
		delete(f.ports, p.key)
		p.stop()
		_ = p.listener.Close()
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
