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
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// netLanes are n lanes over net, which wraps the transport mem.
func netLanes(n int, net transport.Transport) mpt.Lanes {
	l := lanes(n, mem.New(nil))
	l.Transport = net
	return l
}

// dialects are the ways to open a channel.
var dialects = []struct {
	name string
	open func(testing.TB, *mpt.Factory, *mpt.Factory, channeltest.Connect) (*end, *end)
}{{"compatible", compatPair}, {"native", nativePair}}

// warm moves tensors until the lanes are at work: those before take the pipe's
// own way. between lets time pass.
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

// One lane is cut in the middle of a tensor: both ends say so, and all transfers
// are over.
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
			require.Error(t, patience.Finish(t, one.broken))
			require.Error(t, patience.Finish(t, other.broken))
			require.Error(t, patience.Finish(t, idle))
			_ = patience.Finish(t, sent)
			_ = patience.Finish(t, received)
			for _, e := range []*end{one, other} {
				var named *channel.Error
				require.ErrorAs(t, patience.Finish(t, send(e, 1<<40, make([]byte, size))), &named)
				require.Equal(t, "worker1", named.Peer)
			}
		})
	}
}

// One lane is much slower than the others: in the native dialect it carries less.
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

// swallowing is a transport whose n-th connection is never heard of.
type swallowing struct {
	transport.Transport
	turns chan bool // whether to swallow the next
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

// A lane never arrives. In the compatible dialect that is the end, in time.
func TestLaneThatNeverArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := mpt.New(netLanes(3, newSwallowing(false, true, false)))
		begun := time.Now()
		one, other := compatPair(t, f, f, overMem())
		sent, received := send(one, 0, make([]byte, 100)), recv(other, 0, make([]byte, 100))
		require.ErrorIs(t, <-sent, mpt.ErrLate)
		require.ErrorIs(t, <-one.broken, mpt.ErrLate)
		require.LessOrEqual(t, time.Since(begun), 10*time.Second)
		require.Error(t, <-other.broken) // the lane may be on its way, behind the end
		require.Error(t, <-received)
		require.LessOrEqual(t, time.Since(begun), 11*time.Second)
		synctest.Wait()
		require.Zero(t, f.Ports())
	})
}

// In the native dialect it harms nobody: tensors go the pipe's own way, all the
// time and ever after. The logs of both ends say why.
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
		"a lane is refused":    {mute{mem.New(nil), refusing}, mem.New(nil), refusing.Error(), dialled},
		"nobody can listen":    {mem.New(nil), deaf{mem.New(nil), refusing}, "the peer could not listen", refusing.Error()},
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

// mute is a transport that cannot dial.
type mute struct {
	transport.Transport
	err error
}

func (m mute) Dial(context.Context, string) (transport.Conn, error) { return nil, m.err }

// deaf is a transport that cannot listen.
type deaf struct {
	transport.Transport
	err error
}

func (d deaf) Listen(context.Context, string) (transport.Listener, error) { return nil, d.err }

// framesOnly is a transport whose connections have no powers.
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

// secure is a connection that passes for one with TLS.
type secure struct{ transport.Conn }

func (secure) ConnectionState() (tls.ConnectionState, bool) { return tls.ConnectionState{}, true }

// overTLS connects so that both ends think that they speak TLS.
func overTLS() channeltest.Connect {
	connect := overMem()
	return func(t testing.TB) (one, other transport.Conn) {
		one, other = connect(t)
		return secure{one}, secure{other}
	}
}

// A pipe with TLS has no lanes without.
func TestPlainLanesAreRefused(t *testing.T) {
	f := mpt.New(lanes(2, mem.New(nil)))
	one, other := compatPair(t, f, f, overTLS())
	require.Error(t, patience.Finish(t, one.broken))
	require.Error(t, patience.Finish(t, other.broken))
	one, _ = compatPair(t, f, f, overTLS())
	require.ErrorIs(t, patience.Finish(t, recv(one, 0, make([]byte, 10))), mpt.ErrPlain)

	c, l := overTLS()(t)
	m, n := hosts(t, overMem())
	one, other = openEnd(t, f, channel.RoleConnect, c, m), openEnd(t, f, channel.RoleListen, l, n)
	for id := range uint64(10) {
		move(t, id, one, other, numbered(1<<20))
	}
	require.Equal(t, 10, one.hostedSends())
}

// The channel, and all that knows its factory, go away while the lanes are being
// opened: one end goes on dialling, and the other listens for what does not come.
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
	synctest.Wait() // nothing moves any more
	require.EqualValues(t, 1, net.held.Load(), "a lane is being dialled")
	require.Equal(t, 1, f.Ports(), "and waited for")
	begun := time.Now()
	if first == channel.RoleConnect {
		one, other = other, one
	}
	require.NoError(t, other.Close(errTest))
	require.NoError(t, one.Close(errTest))
	<-sent // well where it went the pipe's own way
	<-received
	require.Zero(t, net.held.Load())
	require.Zero(t, f.Ports())
	require.Less(t, time.Since(begun), 10*time.Second, "not what a late lane ends by")
}

// A transfer that is given up frees the lanes for others, whoever gave it up.
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
		_ = patience.Finish(t, sent)
		_ = patience.Finish(t, received)
		id++
		move(t, id, one, other, numbered(1<<20))
		id++
	}
	require.Empty(t, one.broken)
	require.Empty(t, other.broken)
}
