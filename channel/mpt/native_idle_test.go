package mpt_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// counted is a transport that counts open ends of connections.
type counted struct {
	transport.Transport
	open *atomic.Int64
}

func (c counted) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	conn, err := c.Transport.Dial(ctx, addr)
	return c.count(conn, err)
}

func (c counted) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := c.Transport.Listen(ctx, addr)
	return countedListener{l, c}, err
}

func (c counted) count(conn transport.Conn, err error) (transport.Conn, error) {
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &countedConn{conn, conn.(transport.Multiplexer), sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type countedListener struct {
	transport.Listener
	by counted
}

func (l countedListener) Accept(ctx context.Context) (transport.Conn, error) {
	conn, err := l.Listener.Accept(ctx)
	return l.by.count(conn, err)
}

type countedConn struct {
	transport.Conn
	transport.Multiplexer
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (c *countedConn) Stream() (transport.Stream, error) {
	s, err := c.Multiplexer.Stream()
	return countedStream{s, c}, err
}

type countedStream struct {
	transport.Stream
	conn *countedConn
}

func (s countedStream) Close() error {
	s.conn.closed()
	return s.Stream.Close()
}

// Lanes that are used in at least one direction stay open. Idle ones are closed at both ends, and
// opened again for the next large tensors; until then tensors use the bulk connection.
func TestIdleLanesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		f := mpt.New(netLanes(2, counted{mem.New(nil), &open}))
		one, other := nativePair(t, f, f, overMem())
		id := uint64(0)
		for range 3 {
			id = warmFrom(t, id, one, other)
			require.EqualValues(t, 4, open.Load())
			for range 5 { // not while they are used in either direction
				time.Sleep(20 * time.Second)
				hosted := other.hostedSends()
				move(t, 1<<63|id, other, one, numbered(2<<20))
				require.Equal(t, hosted, other.hostedSends())
				id++
			}
			require.EqualValues(t, 4, open.Load())
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Zero(t, open.Load())
			hosted := other.hostedSends()
			move(t, 1<<63|id, other, one, numbered(2<<20))
			require.Equal(t, hosted+1, other.hostedSends())
		}
		require.Empty(t, one.broken)
		require.Empty(t, other.broken)
	})
}

// warmFrom moves tensors from from to to, with ids from id on, until one of them uses the lanes. It
// returns the first id that is not used.
func warmFrom(t *testing.T, id uint64, from, to *end) (next uint64) {
	t.Helper()
	for before := -1; before != from.hostedSends(); id++ {
		before = from.hostedSends()
		move(t, id, from, to, numbered(2<<20))
		time.Sleep(time.Second)
	}
	return id
}

// All tensors arrive that are sent around the time at which idle lanes close, whatever frames of
// the closing they cross with, and also next to an aborted one.
func TestTensorsWhileLanesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 8 * time.Millisecond
		slow := func() transport.Transport { return simnet.New(mem.New(nil), simnet.Delay(delay)) }
		var open atomic.Int64
		f := mpt.NewWithStripe(64<<10, netLanes(2, counted{slow(), &open}))
		one, other := nativePair(t, f, f, channeltest.Over(slow(), ""))
		id := warmFrom(t, 0, one, other)
		begun := time.Now()
		for open.Load() == 4 {
			time.Sleep(time.Millisecond)
		}
		closes := time.Since(begun)
		outcomes := map[[2]int]int{} // number of tensors of each end on the bulk connection
		for at := closes - 8*delay; at < closes+2*delay; at += time.Millisecond {
			time.Sleep(2 * time.Minute) // lanes that were used again are closed too
			require.Zero(t, open.Load())
			id = warmFrom(t, id, one, other)
			time.Sleep(at)
			outcomes[crossing(t, id, one, other)]++
			id += 2
		}
		for _, o := range [][2]int{{0, 0}, {1, 0}, {1, 2}} { // on lanes; the client has sent rest; both have
			require.Positive(t, outcomes[o], "%v", outcomes)
		}
		require.Empty(t, one.broken)
		require.Empty(t, other.broken)
	})
}

// crossing moves a tensor in each direction, and aborts a third one. It fails the test unless the
// two arrive and the third Send fails with errTest. It returns how many tensors one and other, in
// this order, have sent over the bulk connection meanwhile.
func crossing(t *testing.T, id uint64, one, other *end) [2]int {
	t.Helper()
	before := [2]int{one.hostedSends(), other.hostedSends()}
	const size = 300 << 10
	there, back := numbered(size), make([]byte, size)
	sent, returned := send(one, id, there), send(other, 1<<63|id, there)
	lost := send(other, 1<<63|(id+1), make([]byte, size))
	other.Abort(1<<63|(id+1), errTest)
	got := make([]byte, size)
	received, retrieved := recv(other, id, got), recv(one, 1<<63|id, back)
	for _, done := range []<-chan error{sent, returned, received, retrieved} {
		require.NoError(t, <-done)
	}
	require.ErrorIs(t, <-lost, errTest)
	require.Equal(t, there, got)
	require.Equal(t, there, back)
	return [2]int{one.hostedSends() - before[0], other.hostedSends() - before[1]}
}

// A channel whose lanes are being closed can be closed at any moment; Close returns, and no lane
// stays open.
func TestCloseWhileLanesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		over := simnet.New(mem.New(nil), simnet.Delay(time.Second))
		f := mpt.New(netLanes(2, counted{mem.New(nil), &open}))
		for wait := range 8 {
			one, other := nativePair(t, f, f, channeltest.Over(over, ""))
			warmFrom(t, 0, one, other)
			time.Sleep(57*time.Second + time.Duration(wait)*500*time.Millisecond)
			require.NoError(t, one.Close(nil))
			require.NoError(t, other.Close(nil))
			require.Zero(t, open.Load())
		}
	})
}

// Frames about the closing of lanes that the peer must not send now, and an offer on lanes that are
// being closed, end the channel with channel.ErrProtocol.
func TestHostileClosingOfLanes(t *testing.T) {
	rest, offer := word(7), word(4, uint64(11), byte(1))
	for name, words := range map[string][][]byte{
		"thrice":                {rest, rest, rest},
		"and then offers":       {rest, offer},
		"with bytes behind":     {word(7, uint16(0))},
		"and opens out of turn": {rest, word(1, uint16(1))},
	} {
		t.Run(name, func(t *testing.T) {
			e, far, sent := openedClient(t, 2<<20)
			for _, w := range words {
				if far.WriteFrames(transport.Frame{w}) != nil {
					break // the end has closed the connection
				}
			}
			require.ErrorIs(t, testwait.Finish(t, e.broken), channel.ErrProtocol)
			require.ErrorIs(t, testwait.Finish(t, sent), channel.ErrProtocol)
		})
	}
}

// When lanes are closed and opened again, a server sends and receives exactly these frames, and
// closes its end of the lanes.
func TestWireFormOfClosingLanes(t *testing.T) {
	over := mem.New(nil)
	far, control := overMem()(t)
	host, _ := hosts(t, overMem())
	e := openEnd(t, mpt.New(lanes(1, over)), channel.RoleListen, control, host)
	for range 3 {
		require.NoError(t, far.WriteFrames(transport.Frame{word(1, uint16(1))}))
		hello, err := wire.DecodeMPTHello(readFrame(t, far)[1:], wire.Limits{})
		require.NoError(t, err)
		lane := hello.(wire.MPTServerHello).Lanes[0]
		conn := dialLane(t, over, lane)
		wantFrame(t, conn, wire.MPTClientHello{RegistrationID: lane.RegistrationID}.Append(nil))
		require.NoError(t, far.WriteFrames(transport.Frame{word(3, uint16(1))}, transport.Frame{word(7)}))
		wantFrame(t, far, word(7))
		require.NoError(t, far.WriteFrames(transport.Frame{word(7)}))
		_, err = conn.NextFrame()
		require.Error(t, err, "the server closes its end, too")
	}
	require.Empty(t, e.broken)
}
