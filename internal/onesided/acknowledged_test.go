package onesided_test

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/onesided"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// With Config.Acknowledge a Recv that has been pulled completes when the sender acknowledges it, with the
// cause of an Abort if the sender has revoked it, and with that of the channel at its end.
func TestAcknowledge(t *testing.T) {
	const id = 7
	frame := func(kind onesided.Kind, numbers ...uint64) transport.Frame {
		p := []byte{byte(kind)}
		for _, n := range append([]uint64{id}, numbers...) {
			p = binary.LittleEndian.AppendUint64(p, n)
		}
		return transport.Frame{p}
	}
	cause := errors.New("a cause")
	for name, c := range map[string]struct {
		then func(t *testing.T, peer transport.Conn, to *onesided.Engine)
		want error
	}{
		"acknowledged": {func(t *testing.T, peer transport.Conn, _ *onesided.Engine) {
			require.NoError(t, peer.WriteFrames(frame(onesided.Acknowledged)))
		}, nil},
		"revoked": {func(t *testing.T, peer transport.Conn, to *onesided.Engine) {
			require.NoError(t, peer.WriteFrames(frame(onesided.Revoke)))
			to.Abort(id, cause)
		}, cause},
		"described again": {func(t *testing.T, peer transport.Conn, _ *onesided.Engine) {
			require.NoError(t, peer.WriteFrames(frame(onesided.Describe, 1, 5)))
		}, channel.ErrProtocol},
		"closed": {func(t *testing.T, _ transport.Conn, to *onesided.Engine) {
			require.NoError(t, to.Close(cause))
		}, cause},
		"peer gone": {func(t *testing.T, peer transport.Conn, _ *onesided.Engine) {
			require.NoError(t, peer.Close())
		}, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			kind := newKind(t)
			f := newShare(kind)
			f.acknowledge = true
			peer, near := connect(t)
			to, _ := openEnd(t, f, near)
			source, err := shareEnd{f}.Describe(alloc(t, kind, "bytes"))
			require.NoError(t, err)
			dst := alloc(t, kind, "-----")
			received, recvErr := result()
			to.Recv(id, dst, received)
			require.NoError(t, peer.WriteFrames(frame(onesided.Describe, source.(*export).handle, 5)))
			n, err := peer.NextFrame()
			require.NoError(t, err)
			text := make([]byte, n)
			require.NoError(t, peer.ReadBody(text))
			require.Equal(t, frame(onesided.Copied)[0], text)
			require.Empty(t, recvErr, "the copy is enqueued, and not acknowledged")
			c.then(t, peer, to)
			require.ErrorIs(t, testwait.Finish(t, recvErr), c.want)
			require.Equal(t, "bytes", contents(t, kind, dst))
		})
	}
}

// A tensor cannot be acknowledged before it was pulled. An acknowledgement without a Recv, which was
// aborted, is ignored.
func TestEarlyAcknowledgement(t *testing.T) {
	kind := newKind(t)
	f := newShare(kind)
	f.acknowledge = true
	peer, near := connect(t)
	to, broken := openEnd(t, f, near)
	received, recvErr := result()
	to.Recv(2, alloc(t, kind, "-----"), received)
	acknowledged := func(id uint64) transport.Frame {
		return transport.Frame{binary.LittleEndian.AppendUint64([]byte{byte(onesided.Acknowledged)}, id)}
	}
	require.NoError(t, peer.WriteFrames(acknowledged(1), acknowledged(2)))
	require.ErrorIs(t, testwait.Finish(t, recvErr), channel.ErrProtocol)
	require.ErrorIs(t, <-broken, channel.ErrProtocol)
}

// A sender acknowledges a tensor that it has not revoked, and completes.
func TestSenderAcknowledges(t *testing.T) {
	kind := newKind(t)
	f := newShare(kind)
	f.acknowledge = true
	near, far := connect(t)
	from, to, _ := open(t, f, near, far)
	src, dst := alloc(t, kind, "bytes"), alloc(t, kind, "-----")
	sent, sendErr := result()
	received, recvErr := result()
	from.Send(1, src, sent)
	to.Recv(1, dst, received)
	require.NoError(t, testwait.Finish(t, sendErr))
	require.NoError(t, testwait.Finish(t, recvErr))
	require.Equal(t, "bytes", contents(t, kind, dst))
	require.Zero(t, from.Kept()+to.Kept())
}
