package mpt_test

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// discard calls Discard of e with id and n, and returns a channel that receives the outcome.
func discard(e *end, id uint64, n int) <-chan error {
	done, err := result()
	e.Channel.(channel.Compatible).Discard(id, n, done)
	return err
}

// Discard drops a tensor on all lanes, and the tensors before and after it arrive unchanged.
func TestDiscard(t *testing.T) {
	f := mpt.New(lanes(3, mem.New(nil)))
	one, other := compatPair(t, f, f, overMem())
	id := uint64(0)
	for _, n := range []int{1, 2, 100, 1 << 20, 3<<20 + 1} {
		data := numbered(n)
		kept := make([]byte, n)
		all := []<-chan error{send(one, id, data), send(one, id+1, data), send(one, id+2, data)}
		all = append(all, discard(other, id, n), recv(other, id+1, kept), discard(other, id+2, n))
		for _, done := range all {
			require.NoError(t, testwait.Finish(t, done))
		}
		require.True(t, bytes.Equal(data, kept), "wrong bytes")
		id += 3
	}
	require.NoError(t, testwait.Finish(t, discard(other, id, 0)))
}

// Discarding a tensor allocates less than a sixteenth of its size.
func TestDiscardIsBounded(t *testing.T) {
	const lanesUsed, size = 4, 64 << 20
	f := mpt.New(lanes(lanesUsed, mem.New(nil)))
	one, other := compatPair(t, f, f, overMem())
	move(t, 0, one, other, numbered(size)) // the lanes are open, and have their buffers
	data := numbered(size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sent := send(one, 1, data)
	require.NoError(t, testwait.Finish(t, discard(other, 1, size)))
	require.NoError(t, testwait.Finish(t, sent))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size/16))
}

// Discard fails with channel.ErrProtocol if the tensor has another length, and with the error of
// the channel after its end or an Abort.
func TestDiscardFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newClosing(t)
		p.dial(t)
		wrong := discard(p.end, 0, 4)
		p.writePiece(t, 0, "abc")
		require.ErrorIs(t, <-wrong, channel.ErrProtocol)
		require.ErrorIs(t, <-p.broken, channel.ErrProtocol)
		for _, n := range []int{0, 4} {
			require.ErrorIs(t, <-discard(p.end, 1, n), channel.ErrProtocol)
		}

		p = newClosing(t)
		given := discard(p.end, 0, 4)
		p.Abort(0, errTest)
		require.ErrorIs(t, <-given, errTest)
	})
}
