package agent

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
)

// Once a message was sent, later work on the streams of its tensors waits for the copies, which may not have begun.
func TestLaterWorkWaitsForCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := delayed.New("npu", 1)
		defer kind.Close()
		var pool streamPool
		copies, err := pool.get(kind, kind.Devices()[0])
		require.NoError(t, err)
		source, err := kind.NewStream(kind.Devices()[0])
		require.NoError(t, err)
		out := &outMessage{streams: []sendStream{{Stream: copies, sources: []device.Stream{source}}}}
		release := copies.(*delayed.Stream).Hold()
		out.endStreams(&pool)
		require.Empty(t, out.streams)
		require.Equal(t, []device.Stream{copies}, pool.free[kind.Devices()[0]])
		after, err := source.Record()
		require.NoError(t, err)
		synctest.Wait()
		done, err := after.Done()
		require.NoError(t, err)
		require.False(t, done)
		release()
		require.NoError(t, after.Synchronize(t.Context()))
	})
}

// A peer cannot have memory allocated on a device whose kind is not among the Kinds.
func TestTensorForUnknownKind(t *testing.T) {
	d, err := newDevices(&Config{Name: "a"})
	require.NoError(t, err)
	_, err = d.alloc(&inMessage{}, device.Device{Kind: "npu"}, 16, nil)
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, "tensor for device npu:0, which is not among the Kinds here")
}
