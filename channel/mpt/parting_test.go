package mpt_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// parting is a listening end of two lanes in the compatible dialect, of which the
// test is the peer.
type parting struct {
	*end
	over    transport.Transport
	far     transport.Conn
	servers []wire.MPTLane
	lanes   []transport.Conn
}

func newParting(t *testing.T) *parting {
	p := &parting{over: mem.New(nil)}
	far, control := overMem()(t)
	p.far = far
	p.end = openEnd(t, mpt.New(lanes(2, p.over)), channel.RoleListen, control, nil)
	hello, err := wire.DecodeMPTHello(readFrame(t, far), wire.Limits{})
	require.NoError(t, err)
	p.servers = hello.(wire.MPTServerHello).Lanes
	return p
}

func (p *parting) dial(t *testing.T) {
	for _, lane := range p.servers {
		p.lanes = append(p.lanes, dialLane(t, p.over, lane))
	}
}

// say writes a piece of a tensor.
func (p *parting) say(t *testing.T, lane int, piece string) {
	t.Helper()
	require.NoError(t, p.lanes[lane].WriteFrames(transport.Frame{[]byte(piece)}))
}

// orderly wants the end that a peer brings about that has closed.
func (p *parting) orderly(t *testing.T) {
	t.Helper()
	require.ErrorIs(t, <-p.broken, io.EOF)
	synctest.Wait()
	require.Empty(t, p.broken)
}

// What is sent behind the end of the control connection fails because the peer has gone,
// not because this end ended its lanes in answer.
func TestSendBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParting(t)
		p.dial(t)
		require.NoError(t, p.far.CloseWrite())
		for _, lane := range p.lanes {
			_, err := lane.NextFrame()
			require.ErrorIs(t, err, io.EOF)
		}
		err := <-send(p.end, 0, []byte("late"))
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, transport.ErrClosed)
		p.orderly(t)
	})
}

// The end of the control connection ends the lanes of this end, and not what the
// peer has sent on its own; nor does the end of one of these end the other.
func TestEndsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParting(t)
		p.dial(t)
		moved := recv(p.end, 0, make([]byte, 4))
		synctest.Wait()
		require.NoError(t, p.far.CloseWrite())
		for _, lane := range p.lanes {
			_, err := lane.NextFrame()
			require.ErrorIs(t, err, io.EOF)
		}
		p.say(t, 0, "ab")
		require.NoError(t, p.lanes[0].CloseWrite())
		synctest.Wait()
		require.Empty(t, p.broken)
		p.say(t, 1, "cd")
		require.NoError(t, <-moved)
		synctest.Wait()
		require.Empty(t, p.broken)
		require.NoError(t, p.lanes[1].CloseWrite())
		p.orderly(t)
		require.ErrorIs(t, <-recv(p.end, 1, make([]byte, 1)), io.EOF)
	})
}

// Lanes may still be on their way when the control connection ends, and carry tensors.
func TestLanesBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParting(t)
		got := make([]byte, 4)
		received := recv(p.end, 0, got)
		require.NoError(t, p.far.CloseWrite())
		synctest.Wait()
		p.dial(t)
		p.say(t, 0, "ab")
		p.say(t, 1, "cd")
		require.NoError(t, <-received)
		require.Equal(t, "abcd", string(got))
		require.Empty(t, p.broken)
		for _, lane := range p.lanes {
			require.NoError(t, lane.CloseWrite())
		}
		p.orderly(t)
	})
}

// Lanes that do not come behind the end of the control connection are not waited for
// as long as others: the peer has closed.
func TestNoLanesBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParting(t)
		received := recv(p.end, 0, make([]byte, 4))
		begun := time.Now()
		require.NoError(t, p.far.Close())
		p.orderly(t)
		require.ErrorIs(t, <-received, io.EOF)
		require.Equal(t, 500*time.Millisecond, time.Since(begun))
	})
}

// A tensor of which a piece is on a lane that has ended cannot be completed. It
// waits for one that can, and then the channel is of no use any more.
func TestTensorOnALaneThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParting(t)
		p.dial(t)
		first, second := recv(p.end, 0, make([]byte, 4)), recv(p.end, 1, make([]byte, 4))
		p.say(t, 0, "ab")
		require.NoError(t, p.lanes[0].Close())
		synctest.Wait()
		require.Empty(t, p.broken)
		require.Empty(t, second)
		p.say(t, 1, "cd")
		require.NoError(t, <-first)
		require.ErrorIs(t, <-second, io.EOF)
		p.orderly(t)
	})
}

// A peer that ends before it has said where its lanes are will never have any.
func TestEndBeforeTheHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, control := overMem()(t)
		p := &parting{end: openEnd(t, mpt.New(lanes(2, mem.New(nil))), channel.RoleConnect, control, nil)}
		sent := send(p.end, 0, make([]byte, 4))
		require.NoError(t, far.CloseWrite())
		p.orderly(t)
		require.ErrorIs(t, <-sent, io.EOF)
	})
}

// An end that has let the control connection end before it said where its lanes are
// waits for the peer's end, and for no lanes.
func TestHelloThatCannotBeSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, control := overMem()(t)
		require.NoError(t, control.CloseWrite())
		p := &parting{end: openEnd(t, mpt.New(lanes(2, mem.New(nil))), channel.RoleListen, control, nil)}
		synctest.Wait()
		require.Empty(t, p.broken)
		begun := time.Now()
		require.NoError(t, far.CloseWrite())
		p.orderly(t)
		require.Zero(t, time.Since(begun))
	})
}
