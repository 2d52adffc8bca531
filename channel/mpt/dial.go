package mpt

import (
	"context"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// maxServerHello is the size of the longest ServerHello that is read.
const maxServerHello = 64 << 10

// decodeServerHello takes what the listening end says about want lanes.
func decodeServerHello(text []byte, want int) ([]wire.MPTLane, error) {
	hello, err := wire.DecodeMPTHello(text, wire.Limits{Entries: maxLanes})
	if err != nil {
		return nil, err
	}
	server, ok := hello.(wire.MPTServerHello)
	switch {
	case !ok:
		return nil, protocolError("a %T where a ServerHello belongs", hello)
	case len(server.Lanes) > want:
		return nil, protocolError("the peer announces %d lanes, want %d", len(server.Lanes), want)
	}
	return server.Lanes, nil
}

// dial opens lanes, all at once; use says more to each, or nothing. It closes
// them all where one fails.
func (f *Factory) dial(ctx context.Context, via transport.Conn, lanes []wire.MPTLane, use func(transport.Conn, uint64) error) ([]transport.Conn, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	conns := make([]transport.Conn, len(lanes))
	var dials sync.WaitGroup
	for i, lane := range lanes {
		dials.Go(func() {
			conn, err := dialLane(ctx, f.groups[f.group(i)].Transport, via, lane, use)
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

func dialLane(ctx context.Context, t transport.Transport, via transport.Conn, lane wire.MPTLane, use func(transport.Conn, uint64) error) (transport.Conn, error) {
	addr := lane.Address
	if r, ok := t.(transport.Reacher); ok {
		addr = r.Reach(addr, via)
	}
	conn, err := t.Dial(ctx, addr)
	if err != nil {
		return nil, unopened(ctx, err)
	}
	unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = checkSecure(via, conn)
	if err == nil {
		err = sayClientHello(conn, lane.RegistrationID)
	}
	if err == nil && use != nil {
		err = use(conn, lane.RegistrationID)
	}
	if !unwatch() {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, unopened(ctx, err)
	}
	return conn, nil
}

func sayClientHello(conn transport.Conn, id uint64) error {
	return conn.WriteFrames(transport.Frame{wire.MPTClientHello{RegistrationID: id}.Append(nil)})
}

// closeAll closes those that are not nil, all at once: with TLS each may take a moment
// to tell its peer.
func closeAll(conns []transport.Conn) {
	var closes sync.WaitGroup
	for _, c := range conns {
		if c != nil {
			closes.Go(func() { _ = c.Close() })
		}
	}
	closes.Wait()
}
