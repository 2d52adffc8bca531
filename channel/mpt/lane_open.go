package mpt

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxServerHello is the maximum size of a ServerHello.
const maxServerHello = 64 << 10

// decodeServerHello decodes text, the listening end's announcement of its lanes, and returns the
// lanes; there may be none. The error is a *wire.Error, or matches channel.ErrProtocol if text is
// another message or has more than want lanes.
func decodeServerHello(text []byte, want int) ([]wire.MPTLane, error) {
	hello, err := wire.DecodeMPTHello(text, wire.Limits{Entries: maxLanes})
	if err != nil {
		return nil, err
	}
	server, ok := hello.(wire.MPTServerHello)
	switch {
	case !ok:
		return nil, protocolError("a %T instead of a ServerHello", hello)
	case len(server.Lanes) > want:
		return nil, protocolError("the peer announces %d lanes, want %d", len(server.Lanes), want)
	}
	return server.Lanes, nil
}

// dial opens a connection for each of lanes, concurrently, and returns them in the same order; the
// caller owns them. If use is not nil, it calls use with each connection and the number of its
// lane, from several goroutines. pipeConn is a connection to the same peer. If a lane fails or use
// returns an error, dial closes all connections and returns the first error; it returns the cause
// of ctx if ctx ends first.
func (f *Factory) dial(ctx context.Context, pipeConn transport.Conn, lanes []wire.MPTLane, use func(transport.Conn, uint64) error) ([]transport.Conn, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	conns := make([]transport.Conn, len(lanes))
	var dials sync.WaitGroup
	for i, lane := range lanes {
		dials.Go(func() {
			conn, err := dialLane(ctx, f.groups[f.group(i)].Transport, pipeConn, lane, use)
			if err != nil {
				fail(err)
			}
			conns[i] = conn
		})
	}
	dials.Wait()
	if err := context.Cause(ctx); err != nil {
		closeAll(conns)
		return nil, err
	}
	return conns, nil
}

// dialLane dials the lane with transport t, sends the lane's number as the first frame, and calls
// use, if not nil, with the connection and the number. It returns the connection, which the caller
// owns. Addresses are translated as for pipeConn, a connection to the same peer; if pipeConn has
// TLS the lane must have it too. On an error the connection is closed. The error is the cause of
// ctx, or matches channel.ErrUnopened.
func dialLane(ctx context.Context, t transport.Transport, pipeConn transport.Conn, lane wire.MPTLane, use func(transport.Conn, uint64) error) (transport.Conn, error) {
	addr := lane.Address
	if a, ok := t.(transport.AddressTranslator); ok {
		addr = a.Reach(addr, pipeConn)
	}
	conn, err := t.Dial(ctx, addr)
	if err != nil {
		return nil, wrapUnopened(ctx, err)
	}
	stopWatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = checkSecure(pipeConn, conn)
	if err == nil {
		err = sendClientHello(conn, lane.RegistrationID)
	}
	if err == nil && use != nil {
		err = use(conn, lane.RegistrationID)
	}
	if !stopWatch() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, wrapUnopened(ctx, err)
	}
	return conn, nil
}

func sendClientHello(conn transport.Conn, id uint64) error {
	return conn.WriteFrames(transport.Frame{wire.MPTClientHello{RegistrationID: id}.Append(nil)})
}

// closeAll closes all elements of conns that are not nil, and waits for that. It closes them
// concurrently, because with TLS each may take some time. It ignores errors.
func closeAll(conns []transport.Conn) {
	var closes sync.WaitGroup
	for _, c := range conns {
		if c != nil {
			closes.Go(func() { _ = c.Close() })
		}
	}
	closes.Wait()
}

// acceptance is the listening end's state while it accepts the lanes of one channel.
type acceptance struct {
	pipeConn     transport.Conn // a connection to the peer
	reservations []*reservation
	hello        wire.MPTServerHello
}

// prepareLanes listens for n lanes of the peer of pipeConn, and returns an acceptance with a
// reservation for each lane and the announcement to send to the peer. The caller must call release
// of the acceptance. The error is the cause of ctx, or matches channel.ErrUnopened; no reservation
// is left then.
func (f *Factory) prepareLanes(ctx context.Context, pipeConn transport.Conn, n int) (*acceptance, error) {
	x := &acceptance{pipeConn: pipeConn}
	for i := range n {
		if err := f.prepareLane(ctx, x, i); err != nil {
			x.release()
			return nil, err
		}
	}
	return x, nil
}

func (f *Factory) prepareLane(ctx context.Context, x *acceptance, i int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := portKey{group: f.group(i)}
	g := f.groups[key.group]
	key.addr = g.Addr
	if key.addr == "" {
		// Only peers that can reach the pipe can reach a lane. If the address of the pipe is no IP
		// address the peer is on this machine.
		key.addr = "127.0.0.1:0"
		if local, err := netip.ParseAddrPort(x.pipeConn.LocalAddr()); err == nil {
			key.addr = net.JoinHostPort(local.Addr().String(), "0")
		}
	}
	p, err := f.open(ctx, key)
	if err != nil {
		return err
	}
	t := p.reserve()
	x.reservations = append(x.reservations, t)
	addr := p.listener.Addr()
	if a, ok := g.Transport.(transport.AddressTranslator); ok {
		addr = a.Advertise(addr, x.pipeConn)
	}
	x.hello.Lanes = append(x.hello.Lanes, wire.MPTLane{Address: addr, RegistrationID: t.id})
	return nil
}

// accept waits until lane i has connected and returns its connection, which the caller then owns.
// It returns the cause of ctx if ctx ends first. If the pipe's connection has TLS and the lane has
// none, it closes the lane and returns an error that matches ErrPlain and channel.ErrUnopened.
func (x *acceptance) accept(ctx context.Context, i int) (transport.Conn, error) {
	conn, err := x.reservations[i].wait(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkSecure(x.pipeConn, conn); err != nil {
		_ = conn.Close()
		return nil, wrapUnopened(ctx, err)
	}
	return conn, nil
}

func (x *acceptance) release() {
	for _, t := range x.reservations {
		t.release()
	}
}

// checkSecure returns ErrPlain if pipeConn, the pipe's connection, has TLS and lane has none, and
// otherwise nil.
func checkSecure(pipeConn, lane transport.Conn) error {
	if transport.IdentityOf(pipeConn).TLS != nil && transport.IdentityOf(lane).TLS == nil {
		return ErrPlain
	}
	return nil
}

// readFrame reads one frame of at most limit bytes from conn and returns it. The result is part of
// buf if the frame fits into buf, and otherwise a new slice. The error is that of conn, or matches
// channel.ErrProtocol if the frame is longer than limit; the slice must not be used then.
func readFrame(conn transport.Conn, buf []byte, limit int64) ([]byte, error) {
	n, err := conn.NextFrame()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, protocolError("a frame of %d bytes, at most %d are expected", n, limit)
	}
	if n > int64(len(buf)) {
		buf = make([]byte, n)
	}
	return buf[:n], conn.ReadBody(buf[:n])
}
