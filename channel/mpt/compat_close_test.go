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

// closing is a listening end of two lanes in the compatible dialect, whose peer is the test.
type closing struct {
	*end
	over    transport.Transport
	far     transport.Conn
	servers []wire.MPTLane
	lanes   []transport.Conn
}

func newClosing(t *testing.T) *closing {
	p := &closing{over: mem.New(nil)}
	far, control := overMem()(t)
	p.far = far
	p.end = openEnd(t, mpt.New(lanes(2, p.over)), channel.RoleListen, control, nil)
	hello, err := wire.DecodeMPTHello(readFrame(t, far), wire.Limits{})
	require.NoError(t, err)
	p.servers = hello.(wire.MPTServerHello).Lanes
	return p
}

func (p *closing) dial(t *testing.T) {
	for _, lane := range p.servers {
		p.lanes = append(p.lanes, dialLane(t, p.over, lane))
	}
}

// writePiece writes piece, the part of a tensor that a lane carries, as a frame to the lane with
// that index.
func (p *closing) writePiece(t *testing.T, lane int, piece string) {
	t.Helper()
	require.NoError(t, p.lanes[lane].WriteFrames(transport.Frame{[]byte(piece)}))
}

// requireEOF waits until the channel reports that it is broken, and fails the test unless it does
// so once, with io.EOF, as after an orderly close of the peer.
func (p *closing) requireEOF(t *testing.T) {
	t.Helper()
	require.ErrorIs(t, <-p.broken, io.EOF)
	synctest.Wait()
	require.Empty(t, p.broken)
}

// A Send after the peer has ended the control connection fails with io.EOF, and not with
// transport.ErrClosed, although this end has closed its lanes in response.
func TestSendAfterPeerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClosing(t)
		p.dial(t)
		require.NoError(t, p.far.CloseWrite())
		for _, lane := range p.lanes {
			_, err := lane.NextFrame()
			require.ErrorIs(t, err, io.EOF)
		}
		err := <-send(p.end, 0, []byte("late"))
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, transport.ErrClosed)
		p.requireEOF(t)
	})
}

// When the peer ends the control connection, this end closes the write direction of its lanes, but
// still receives from each lane until the peer ends it. The channel ends after the last lane.
func TestLanesEndIndividually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClosing(t)
		p.dial(t)
		moved := recv(p.end, 0, make([]byte, 4))
		synctest.Wait()
		require.NoError(t, p.far.CloseWrite())
		for _, lane := range p.lanes {
			_, err := lane.NextFrame()
			require.ErrorIs(t, err, io.EOF)
		}
		p.writePiece(t, 0, "ab")
		require.NoError(t, p.lanes[0].CloseWrite())
		synctest.Wait()
		require.Empty(t, p.broken)
		p.writePiece(t, 1, "cd")
		require.NoError(t, <-moved)
		synctest.Wait()
		require.Empty(t, p.broken)
		require.NoError(t, p.lanes[1].CloseWrite())
		p.requireEOF(t)
		require.ErrorIs(t, <-recv(p.end, 1, make([]byte, 1)), io.EOF)
	})
}

// Lanes that connect shortly after the control connection has ended still carry their tensors.
func TestLanesAfterControlEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClosing(t)
		got := make([]byte, 4)
		received := recv(p.end, 0, got)
		require.NoError(t, p.far.CloseWrite())
		synctest.Wait()
		p.dial(t)
		p.writePiece(t, 0, "ab")
		p.writePiece(t, 1, "cd")
		require.NoError(t, <-received)
		require.Equal(t, "abcd", string(got))
		require.Empty(t, p.broken)
		for _, lane := range p.lanes {
			require.NoError(t, lane.CloseWrite())
		}
		p.requireEOF(t)
	})
}

// If the lanes are not open when the control connection ends, the channel ends with io.EOF after
// half a second.
func TestNoLanesAfterControlEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClosing(t)
		received := recv(p.end, 0, make([]byte, 4))
		begun := time.Now()
		require.NoError(t, p.far.Close())
		p.requireEOF(t)
		require.ErrorIs(t, <-received, io.EOF)
		require.Equal(t, 500*time.Millisecond, time.Since(begun))
	})
}

// A tensor with a piece on a lane that has ended fails, and the channel ends, but only after
// another tensor that can still complete has done so.
func TestTensorOnAnEndedLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClosing(t)
		p.dial(t)
		first, second := recv(p.end, 0, make([]byte, 4)), recv(p.end, 1, make([]byte, 4))
		p.writePiece(t, 0, "ab")
		require.NoError(t, p.lanes[0].Close())
		synctest.Wait()
		require.Empty(t, p.broken)
		require.Empty(t, second)
		p.writePiece(t, 1, "cd")
		require.NoError(t, <-first)
		require.ErrorIs(t, <-second, io.EOF)
		p.requireEOF(t)
	})
}

// If the peer ends the control connection before it has announced its lanes, the channel ends with
// io.EOF.
func TestEndBeforeHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, control := overMem()(t)
		p := &closing{end: openEnd(t, mpt.New(lanes(2, mem.New(nil))), channel.RoleConnect, control, nil)}
		sent := send(p.end, 0, make([]byte, 4))
		require.NoError(t, far.CloseWrite())
		p.requireEOF(t)
		require.ErrorIs(t, <-sent, io.EOF)
	})
}

// cutOff is a connection that ends within the body of its first frame.
type cutOff struct{ transport.Conn }

func (cutOff) ReadBody(...[]byte) error { return io.ErrUnexpectedEOF }

// If the peer closes while it announces its lanes, the channel ends with io.EOF, as if the peer had
// announced nothing.
func TestEndWithinHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, control := overMem()(t)
		p := &closing{end: openEnd(t, mpt.New(lanes(2, mem.New(nil))), channel.RoleConnect, cutOff{control}, nil)}
		sent := send(p.end, 0, make([]byte, 4))
		require.NoError(t, far.WriteFrames(transport.Frame{[]byte("part of a hello")}))
		p.requireEOF(t)
		require.ErrorIs(t, <-sent, io.EOF)
	})
}

// If the peer ends the control connection and this end cannot announce its lanes over it, the
// channel ends at once, without waiting for lanes.
func TestHelloCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, control := overMem()(t)
		require.NoError(t, control.CloseWrite())
		p := &closing{end: openEnd(t, mpt.New(lanes(2, mem.New(nil))), channel.RoleListen, control, nil)}
		synctest.Wait()
		require.Empty(t, p.broken)
		begun := time.Now()
		require.NoError(t, far.CloseWrite())
		p.requireEOF(t)
		require.Zero(t, time.Since(begun))
	})
}
