package hostile_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// joinedMessage returns the header of a message with two tensors of n bytes in one transfer.
func joinedMessage(n uint64) native.Message {
	t := native.Tensor{Length: n, Source: device.CPU(), Target: device.CPU()}
	joined := t
	joined.Joined = true
	return native.Message{Tensors: []native.Tensor{t, joined}}
}

// TestNativeJoinedTransfer checks that both joined tensors of a peer are read from one transfer, with
// the id of the first.
func TestNativeJoinedTransfer(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	a := dialWithFeature(t, v, wire.FeatureJoined)
	const n = 100_000
	a.message(joinedMessage(n))
	in, err := a.pipe.Next(t.Context())
	require.NoError(t, err)
	into := pipe.NewAllocation(in.Descriptor())
	read := make(chan error, 1)
	go func() { read <- in.Read(t.Context(), into) }()
	ready := a.waitControl(native.Ready)
	p := native.ChunkHeader{ID: ready.Number, Lane: ready.Lane, Length: 2 * n}.Append(nil)
	p = append(append(p, bytes.Repeat([]byte{1}, n)...), bytes.Repeat([]byte{2}, n)...)
	bulk := a.bulk()
	bulk.send(native.ChunkTrailer{}.Append(p))
	require.NoError(t, <-read)
	require.Equal(t, native.TransferID(0, 0), ready.Number)
	for i, b := range into.Tensors {
		data, _ := b.Contiguous()
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, n), data)
	}
	bulk.Close()
	require.NoError(t, a.first.Close())
	a.pipe.Abort(nil)
}

// TestNativeJoinedIfSupported checks that tensors are joined for a peer that supports it, and not for
// another one.
func TestNativeJoinedIfSupported(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	for features, joined := range map[wire.Features]bool{0: false, wire.FeatureJoined: true} {
		a := dialWithFeature(t, v, features)
		p := make([]byte, 3<<20)
		tensor := pipe.Tensor{Buffer: device.Bytes(p), TargetDevice: device.CPU()}
		op := a.pipe.WriteAsync(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{tensor, tensor}})
		var m native.Message
		a.waitFor(func() bool {
			frame := a.received[messageStream]
			return len(frame) > native.HeaderSize && m.Decode(frame[native.HeaderSize:], native.Limits{}) == nil
		})
		require.Equal(t, []bool{false, joined}, []bool{m.Tensors[0].Joined, m.Tensors[1].Joined})
		a.pipe.Abort(nil)
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrClosed)
		require.NoError(t, a.first.Close())
	}
}
