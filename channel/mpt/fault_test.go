package mpt_test

import (
	"context"
	"crypto/tls"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// netLanes returns a group of n lanes over net, a transport that wraps mem, at an address that no
// other group has.
func netLanes(n int, net transport.Transport) mpt.Lanes {
	l := lanes(n, mem.New(nil))
	l.Transport = net
	return l
}

// dialects are the functions that open a channel.
var dialects = []struct {
	name string
	open func(testing.TB, *mpt.Factory, *mpt.Factory, channeltest.Connect) (*end, *end)
}{{"compatible", compatPair}, {"native", nativePair}}

// warm moves large tensors from from to to until one of them uses the lanes; the earlier ones use
// the bulk connection. It calls between after each of the earlier ones. It returns the first id
// that is not used.
func warm(t testing.TB, from, to *end, between func()) (next uint64) {
	t.Helper()
	data := numbered(4 << 20)
	for id := uint64(100); ; id++ {
		before := from.hostedSends()
		move(t, id, from, to, data)
		if from.hostedSends() == before {
			return id + 1
		}
		between()
	}
}

// If one lane is cut in the middle of a tensor, both ends report that they are broken, all
// transfers end, and later ones fail with an error that names the peer.
func TestOneLaneIsCut(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			net := simnet.New(mem.New(nil))
			f := mpt.New(netLanes(3, net))
			one, other := d.open(t, f, f, overMem())
			const size = 16 << 20
			id := uint64(0)
			if d.name == "native" {
				id = warm(t, one, other, runtime.Gosched)
			} else {
				move(t, id, one, other, numbered(100))
				id++
			}
			sent, received := send(one, id, make([]byte, size)), recv(other, id, make([]byte, size))
			idle := recv(one, 1<<63|id, make([]byte, size))
			net.Links()[1].Cut()
			require.Error(t, testwait.Finish(t, one.broken))
			require.Error(t, testwait.Finish(t, other.broken))
			require.Error(t, testwait.Finish(t, idle))
			_ = testwait.Finish(t, sent)
			_ = testwait.Finish(t, received)
			for _, e := range []*end{one, other} {
				var named *channel.Error
				require.ErrorAs(t, testwait.Finish(t, send(e, 1<<40, make([]byte, size))), &named)
				require.Equal(t, "worker1", named.Peer)
			}
		})
	}
}

// In the native dialect, a lane that is much slower than the other carries less than half as many
// bytes.
func TestOneLaneIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fast, slow = 1 << 30, 32 << 20
		net := simnet.New(mem.New(nil), simnet.Rate(fast), simnet.OnLink(1, simnet.Rate(slow)))
		f := mpt.NewWithStripe(64<<10, netLanes(2, net))
		one, other := nativePair(t, f, f, overMem())
		id := warm(t, one, other, func() { time.Sleep(time.Second) })
		var before [2]int64
		for i, l := range net.Links() {
			before[i] = l.Sent(simnet.Dialled).Bytes
		}
		const size = 64 << 20
		move(t, id, one, other, numbered(size))
		carried := func(i int) int64 { return net.Links()[i].Sent(simnet.Dialled).Bytes - before[i] }
		require.Less(t, carried(1), carried(0)/2, "of %d bytes", size)
		require.Greater(t, carried(1), int64(0))
	})
}

// swallowing is a transport whose n-th connection is accepted but never delivered.
type swallowing struct {
	transport.Transport
	turns chan bool // whether to drop the next connection
	held  atomic.Int32
}

func (s *swallowing) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if <-s.turns {
		s.held.Add(1)
		defer s.held.Add(-1)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s.Transport.Dial(ctx, addr)
}

func newSwallowing(which ...bool) *swallowing {
	s := &swallowing{Transport: mem.New(nil), turns: make(chan bool, len(which))}
	for _, w := range which {
		s.turns <- w
	}
	return s
}

// In the compatible dialect, if one lane never connects, the channel ends within the time limit,
// with ErrLate at the dialling end, and the ports are closed.
func TestLaneThatNeverArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := mpt.New(netLanes(3, newSwallowing(false, true, false)))
		begun := time.Now()
		one, other := compatPair(t, f, f, overMem())
		sent, received := send(one, 0, make([]byte, 100)), recv(other, 0, make([]byte, 100))
		require.ErrorIs(t, <-sent, mpt.ErrLate)
		require.ErrorIs(t, <-one.broken, mpt.ErrLate)
		require.LessOrEqual(t, time.Since(begun), 10*time.Second)
		require.Error(t, <-other.broken) // the lane may still be on its way
		require.Error(t, <-received)
		require.LessOrEqual(t, time.Since(begun), 11*time.Second)
		synctest.Wait()
		require.Zero(t, f.Ports())
	})
}

// In the native dialect, if lanes cannot be opened, all tensors use the bulk connection, the
// channel does not end, and both ends log the reason.
func TestNativeWithoutLanes(t *testing.T) {
	refusing := errors.New("no route")
	swallowing, framed := newSwallowing(false, true), framesOnly{mem.New(nil)}
	const unopened, late, dialled = "could not be opened", "not open in time", "the peer could not dial"
	for name, c := range map[string]struct {
		dials, listens         transport.Transport
		whyDialled, whyListens string
	}{
		"a lane never arrives": {swallowing, swallowing.Transport, late, dialled},
		"no lane is accepted":  {mem.New(nil), mem.New(nil), unopened, dialled},
		"a lane is refused":    {notDialling{mem.New(nil), refusing}, mem.New(nil), refusing.Error(), dialled},
		"nobody can listen":    {mem.New(nil), notListening{mem.New(nil), refusing}, "the peer could not listen", refusing.Error()},
		"no streams":           {framed, framed, unopened, "unsupported"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dials, listens := mpt.New(netLanes(2, c.dials)), mpt.New(netLanes(2, c.listens))
				one, other := nativePair(t, dials, listens, overMem())
				data := numbered(3 << 20)
				for id := range uint64(6) {
					move(t, id, one, other, data)
					move(t, 1<<63|id, other, one, data)
					time.Sleep(6 * time.Second)
				}
				require.Equal(t, 6, one.hostedSends())
				require.Equal(t, 6, other.hostedSends())
				require.Empty(t, one.broken)
				require.Empty(t, other.broken)
				require.Zero(t, listens.Ports())
				require.Contains(t, one.log.String(), c.whyDialled)
				require.Contains(t, other.log.String(), c.whyListens)
			})
		})
	}
}

// notDialling is a transport whose Dial fails.
type notDialling struct {
	transport.Transport
	err error
}

func (m notDialling) Dial(context.Context, string) (transport.Conn, error) { return nil, m.err }

// notListening is a transport whose Listen fails.
type notListening struct {
	transport.Transport
	err error
}

func (d notListening) Listen(context.Context, string) (transport.Listener, error) { return nil, d.err }

// framesOnly is a transport whose connections implement no optional interfaces.
type framesOnly struct{ transport.Transport }

func (f framesOnly) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := f.Transport.Dial(ctx, addr)
	return plain{c}, err
}

func (f framesOnly) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := f.Transport.Listen(ctx, addr)
	return plainListener{l}, err
}

type plain struct{ transport.Conn }

type plainListener struct{ transport.Listener }

func (l plainListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return plain{c}, nil
}

// secure is a connection that reports TLS.
type secure struct{ transport.Conn }

func (secure) PeerIdentity() (transport.Identity, error) {
	return transport.Identity{TLS: &tls.ConnectionState{}}, nil
}

// overTLS returns a Connect for connections within this process that report TLS, although they have
// none.
func overTLS() channeltest.Connect {
	connect := overMem()
	return func(t testing.TB) (one, other transport.Conn) {
		one, other = connect(t)
		return secure{one}, secure{other}
	}
}

// In a pipe with TLS, lanes without TLS are rejected: a compatible channel ends with ErrPlain, and
// in the native dialect all tensors use the bulk connection.
func TestPlainLanesAreRefused(t *testing.T) {
	f := mpt.New(lanes(2, mem.New(nil)))
	one, other := compatPair(t, f, f, overTLS())
	require.Error(t, testwait.Finish(t, one.broken))
	require.Error(t, testwait.Finish(t, other.broken))
	one, _ = compatPair(t, f, f, overTLS())
	require.ErrorIs(t, testwait.Finish(t, recv(one, 0, make([]byte, 10))), mpt.ErrPlain)

	c, l := overTLS()(t)
	m, n := hosts(t, overMem())
	one, other = openEnd(t, f, channel.RoleConnect, c, m), openEnd(t, f, channel.RoleListen, l, n)
	for id := range uint64(10) {
		move(t, id, one, other, numbered(1<<20))
	}
	require.Equal(t, 10, one.hostedSends())
}

// A channel can be closed, and its factory dropped, while one end is dialling lanes and the other
// one waits for lanes that do not come.
func TestParityOfContextNotJoined(t *testing.T) {
	parity.Case(t, "tensorpipe/channel.MptContextIsNotJoined", func(t *testing.T) {
		for _, d := range dialects {
			for _, first := range []channel.Role{channel.RoleConnect, channel.RoleListen} {
				t.Run(d.name+", "+first.String(), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						net := newSwallowing(false, true, false)
						f := mpt.New(netLanes(3, net))
						one, other := d.open(t, f, f, overMem())
						closeWhileLanesOpen(t, f, net, one, other, first)
					})
				})
			}
		}
	})
}

func closeWhileLanesOpen(t *testing.T, f *mpt.Factory, net *swallowing, one, other *end, first channel.Role) {
	t.Helper()
	sent, received := send(one, 0, make([]byte, 2<<20)), recv(other, 0, make([]byte, 2<<20))
	synctest.Wait() // the channel is closed or has failed
	require.EqualValues(t, 1, net.held.Load(), "a lane is being dialled")
	require.Equal(t, 1, f.Ports(), "and waited for")
	begun := time.Now()
	if first == channel.RoleConnect {
		one, other = other, one
	}
	require.NoError(t, other.Close(errTest))
	require.NoError(t, one.Close(errTest))
	<-sent // without error if the bulk connection carried it
	<-received
	require.Zero(t, net.held.Load())
	require.Zero(t, f.Ports())
	require.Less(t, time.Since(begun), 10*time.Second, "not what a late lane ends by")
}

// After a large transfer was aborted at either end, later tensors still arrive, and the channel
// does not end.
func TestAbortWhileSlicesMove(t *testing.T) {
	net := simnet.New(mem.New(nil))
	f := mpt.NewWithStripe(64<<10, netLanes(2, net))
	one, other := nativePair(t, f, f, overMem())
	id := warm(t, one, other, runtime.Gosched)
	for range 20 {
		src, dst := make([]byte, 8<<20), make([]byte, 8<<20)
		sent, received := send(one, id, src), recv(other, id, dst)
		by, to := one, other
		if id%2 == 0 {
			by, to = other, one
		}
		by.Abort(id, errTest)
		to.Abort(id, channel.ErrAborted)
		_ = testwait.Finish(t, sent)
		_ = testwait.Finish(t, received)
		id++
		move(t, id, one, other, numbered(1<<20))
		id++
	}
	require.Empty(t, one.broken)
	require.Empty(t, other.broken)
}
