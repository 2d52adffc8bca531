package mpt_test

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// closingEnds is a channel of two lanes, with separate delays for the stream, each lane and the bulk
// connection.
type closingEnds struct {
	one, other *end
	lanes      *simnet.Network
	id         uint64 // id of the next tensor
}

// openClosing returns the two ends of a channel in the native dialect whose two lanes are in use.
// Frames arrive after the delay control on the control connection and after the delay host on the
// bulk connection; the rules lane apply to the lanes.
func openClosing(t *testing.T, control, host time.Duration, lane ...simnet.Rule) *closingEnds {
	over := func(d time.Duration) channeltest.Connect {
		return channeltest.Over(simnet.New(mem.New(nil), simnet.Delay(d)), "")
	}
	p := &closingEnds{lanes: simnet.New(mem.New(nil), lane...)}
	f := mpt.NewWithStripe(64<<10, netLanes(2, p.lanes))
	c, l := over(control)(t)
	m, n := hosts(t, over(host))
	p.one, p.other = openEnd(t, f, channel.RoleConnect, c, m), openEnd(t, f, channel.RoleListen, l, n)
	p.id = warm(t, p.one, p.other, func() { time.Sleep(time.Minute / 6) })
	return p
}

// sent sends one tensor of each of sizes from p.one to p.other, and returns when all Sends are
// done. The channels in received receive the outcomes of the Recvs; check fails the test unless all
// have the right bytes.
func (p *closingEnds) sent(t *testing.T, sizes ...int) (received []<-chan error, check func()) {
	var sends []<-chan error
	got := make([][]byte, len(sizes))
	for i, size := range sizes {
		got[i] = make([]byte, size)
		sends = append(sends, send(p.one, p.id, numbered(size)))
		received = append(received, recv(p.other, p.id, got[i]))
		p.id++
	}
	for _, done := range sends {
		require.NoError(t, <-done)
	}
	return received, func() {
		for i := range got {
			require.Equal(t, numbered(sizes[i]), got[i])
		}
	}
}

// The tensors that an end has sent before it closed arrive on all lanes and over the bulk
// connection, whichever of the connections ends first. The peer reports io.EOF at the first end of
// a connection, and all other and later transfers fail with it.
func TestCloseDeliversOnEveryLane(t *testing.T) {
	const soon, late = time.Millisecond, time.Second
	for name, c := range map[string]struct {
		control, host, first, second time.Duration
	}{
		"the stream is first": {soon, late, late, 2 * late},
		"a lane is first":     {late, late, soon, 2 * late},
		"another is first":    {late, late, 2 * late, soon},
		"the host is first":   {late, soon, late, late},
		"all at once":         {soon, soon, soon, soon},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := openClosing(t, c.control, c.host,
					simnet.OnLink(0, simnet.Delay(c.first)), simnet.OnLink(1, simnet.Delay(c.second)))
				received, check := p.sent(t, 1<<20, 1000, 3<<20, 100_000)
				idle := recv(p.other, 1<<40, make([]byte, 1<<20))
				back := send(p.other, 1<<63|p.id, make([]byte, 1<<20))
				little := send(p.other, 1<<63|p.id+1, make([]byte, 1000))
				require.NoError(t, p.one.Close(errTest))
				require.ErrorIs(t, <-p.other.broken, io.EOF)
				for _, never := range []<-chan error{idle, back, little, send(p.other, 1, make([]byte, 1)), recv(p.other, 2, nil)} {
					require.ErrorIs(t, <-never, io.EOF)
				}
				for _, done := range received {
					require.NoError(t, <-done)
				}
				check()
				require.NoError(t, p.other.Close(nil))
				require.Empty(t, p.other.broken)
			})
		})
	}
}

// If a lane is cut while it carries tensors in both directions, both ends report that they are
// broken, and all transfers fail, on both lanes.
func TestLaneIsCutInBothDirections(t *testing.T) {
	for cut := range 2 {
		t.Run(fmt.Sprint("lane ", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := openClosing(t, 0, 0, simnet.Rate(1<<20))
				var all []<-chan error
				for range 4 {
					const size = 4 << 20
					all = append(all, send(p.one, p.id, make([]byte, size)), recv(p.other, p.id, make([]byte, size)),
						send(p.other, 1<<63|p.id, make([]byte, size)), recv(p.one, 1<<63|p.id, make([]byte, size)))
					p.id++
				}
				time.Sleep(time.Second)
				p.lanes.Links()[cut].Cut()
				for _, e := range []*end{p.one, p.other} {
					require.NotErrorIs(t, <-e.broken, channel.ErrProtocol)
				}
				for _, done := range all {
					require.Error(t, <-done)
				}
			})
		})
	}
}

// If the peer closes while the listening end waits for its lanes, the channel ends and the port is
// closed at once.
func TestPeerClosesWhileLanesOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := mpt.New(netLanes(2, newSwallowing(true, true)))
		far, control := overMem()(t)
		host, _ := hosts(t, overMem())
		e := openEnd(t, f, channel.RoleListen, control, host)
		require.NoError(t, far.WriteFrames(transport.Frame{word(1, uint16(2))}))
		_ = readFrame(t, far)
		require.Positive(t, f.Ports())
		begun := time.Now()
		require.NoError(t, far.Close())
		require.ErrorIs(t, <-e.broken, io.EOF)
		synctest.Wait()
		require.Zero(t, f.Ports())
		require.Zero(t, time.Since(begun))
	})
}

// After the peer has closed the control connection, invalid bytes on one lane fail the tensors with
// slices on that lane; a tensor on the other lane still arrives.
func TestGarbageAfterTheEnd(t *testing.T) {
	const slice = 64 << 10
	e, far, streams := openedServer(t, 2, slice)
	var received []<-chan error
	for id := range uint64(3) {
		received = append(received, recv(e, id, make([]byte, 2*slice)))
		require.NoError(t, far.WriteFrames(transport.Frame{word(4, id, byte(1))}))
	}
	ordered := func(id, offset uint64, lane uint16) {
		t.Helper()
		wantFrame(t, far, word(6, id, offset, uint64(slice), lane))
	}
	for id := range uint64(2) {
		ordered(id, 0, 0)
		ordered(id, slice, 1)
	}
	bring(t, streams[0], 0, slice) // only now, otherwise lane 0 might get both of the first two
	bring(t, streams[0], 2, slice)
	ordered(2, 0, 0)
	ordered(2, slice, 0)

	require.NoError(t, far.Close())
	require.ErrorIs(t, testwait.Finish(t, e.broken), io.EOF)
	_, err := streams[1].Write(make([]byte, 100))
	require.NoError(t, err)
	for _, lost := range received[:2] {
		require.ErrorIs(t, testwait.Finish(t, lost), channel.ErrProtocol)
	}
	bring(t, streams[0], 4, slice)
	bring(t, streams[0], 5, slice)
	require.NoError(t, testwait.Finish(t, received[2]))
	require.Empty(t, e.broken)
}

// openedServer returns a listening end with count lanes that the test, its peer, has opened, and
// whose smallest slices have slice bytes. far is the control connection and streams are the lanes,
// at the test's side.
func openedServer(t *testing.T, count, slice int) (e *end, far transport.Conn, streams []transport.Stream) {
	t.Helper()
	over := mem.New(nil)
	far, control := overMem()(t)
	host, _ := hosts(t, overMem())
	e = openEnd(t, mpt.NewWithStripe(slice, lanes(count, over)), channel.RoleListen, control, host)
	require.NoError(t, far.WriteFrames(transport.Frame{word(1, uint16(count))}))
	hello, err := wire.DecodeMPTHello(readFrame(t, far)[1:], wire.Limits{})
	require.NoError(t, err)
	for _, lane := range hello.(wire.MPTServerHello).Lanes {
		conn := dialLane(t, over, lane)
		wantFrame(t, conn, wire.MPTClientHello{RegistrationID: lane.RegistrationID}.Append(nil))
		stream, err := conn.(transport.Multiplexer).Stream()
		require.NoError(t, err)
		streams = append(streams, stream)
	}
	require.NoError(t, far.WriteFrames(transport.Frame{word(3, uint16(count))}))
	return e, far, streams
}

// bring writes a slice of slice zero bytes to lane, for the request with the number order, as a
// sender does.
func bring(t *testing.T, lane transport.Stream, order uint64, slice int) {
	t.Helper()
	text := native.ChunkHeader{ID: order, Length: slice}.Append(nil)
	text = append(text, make([]byte, slice)...)
	_, err := lane.Write(native.ChunkTrailer{}.Append(text))
	require.NoError(t, err)
}
