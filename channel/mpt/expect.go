package mpt

import (
	"context"
	"net"
	"net/netip"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// expectation is the listening end's part of opening lanes.
type expectation struct {
	via     transport.Conn // a connection to the peer
	tickets []*ticket
	hello   wire.MPTServerHello
}

// expect prepares for the first n lanes of a peer. The caller releases the result.
func (f *Factory) expect(ctx context.Context, via transport.Conn, n int) (*expectation, error) {
	x := &expectation{via: via}
	for i := range n {
		if err := f.expectLane(ctx, x, i); err != nil {
			x.release()
			return nil, err
		}
	}
	return x, nil
}

func (f *Factory) expectLane(ctx context.Context, x *expectation, i int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := portKey{group: f.group(i)}
	key.addr = listenAddr(f.groups[key.group].Addr, x.via)
	p, err := f.open(ctx, key)
	if err != nil {
		return err
	}
	t := p.expect()
	x.tickets = append(x.tickets, t)
	x.hello.Lanes = append(x.hello.Lanes, wire.MPTLane{Address: p.advertise(x.via), RegistrationID: t.id})
	return nil
}

// listenAddr is where to listen: where it was said, or else where the pipe came
// in, so that nobody reaches a lane who could not reach the pipe. Where that is
// no address of the internet protocol, the peer is on this machine.
func listenAddr(configured string, via transport.Conn) string {
	if configured != "" {
		return configured
	}
	if local, err := netip.ParseAddrPort(via.LocalAddr()); err == nil {
		return net.JoinHostPort(local.Addr().String(), "0")
	}
	return "127.0.0.1:0"
}

// advertise is the address at which the peer behind via can dial the port.
func (p *port) advertise(via transport.Conn) string {
	if a, ok := p.listener.(transport.Advertiser); ok {
		return a.AdvertiseTo(via)
	}
	return p.listener.Addr()
}

// lane waits for lane i.
func (x *expectation) lane(ctx context.Context, i int) (transport.Conn, error) {
	conn, err := x.tickets[i].wait(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkSecure(x.via, conn); err != nil {
		_ = conn.Close()
		return nil, unopened(ctx, err)
	}
	return conn, nil
}

func (x *expectation) release() {
	for _, t := range x.tickets {
		t.release()
	}
}

// checkSecure refuses a plain lane for a peer that was reached over TLS.
func checkSecure(via, lane transport.Conn) error {
	if secured(via) && !secured(lane) {
		return ErrPlain
	}
	return nil
}

func secured(c transport.Conn) bool {
	s, ok := c.(transport.Secured)
	if !ok {
		return false
	}
	_, agreed := s.ConnectionState()
	return agreed
}
