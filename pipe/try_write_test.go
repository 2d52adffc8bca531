package pipe_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// tryWrite calls p.TryWrite with m, requires that there is no error, and reports whether m was
// accepted.
func tryWrite(t *testing.T, p *pipe.Pipe, m *pipe.Message) bool {
	t.Helper()
	taken, err := p.TryWrite(m)
	require.NoError(t, err)
	return taken
}

// TestTryWrite checks that TryWrite accepts a small message while the pipe's budget has bytes. It
// does not accept one whose parts are not all inline, or any while the budget is used up, and then
// sends nothing. Its error is ErrMessage for an invalid message, and the pipe's error after the
// end.
func TestTryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 1 << 20
		client, server := connect(t, nativePath(), func(o *pipe.Options) { o.Limits.PipeBytesInFlight = budget })
		small := func(seed int) *pipe.Message { return message(seed, []int{100}, []int{200}, device.CPU()) }
		large := message(1, nil, []int{2 * budget}, device.CPU())
		require.True(t, tryWrite(t, client, small(2)))
		require.False(t, tryWrite(t, client, large))
		expect(t, server, small(2))

		sending := client.WriteAsync(t.Context(), large)
		require.False(t, tryWrite(t, client, small(3)), "the budget is used up")
		expect(t, server, large)
		require.NoError(t, sending.Wait(t.Context()))
		require.True(t, tryWrite(t, client, small(4)))
		expect(t, server, small(4))
		synctest.Wait()
		require.Zero(t, client.Stats().BytesInFlight)

		_, err := client.TryWrite(nil)
		require.ErrorIs(t, err, pipe.ErrMessage)
		client.Abort(errEnough)
		_, err = client.TryWrite(small(5))
		require.ErrorIs(t, err, errEnough)
	})
}

// TestTryWriteBeyondTheSharedBudget checks that TryWrite does not accept a message while the
// context's budget is used up by another pipe, and then keeps no bytes of its pipe's own budget. It
// accepts messages again once the other pipe has ended.
func TestTryWriteBeyondTheSharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := nativePath()
		a := newContext(t, path, func(o *pipe.Options) { o.Limits.ContextBytesInFlight = 1 << 20 })
		b := newContext(t, path)
		one, _ := connectContexts(t, a, b, path.url)
		two, server := connectContexts(t, a, b, path.url)
		var large []*pipe.WriteOp
		for range 2 { // each counts as half of the budget
			large = append(large, one.WriteAsync(t.Context(), message(1, []int{2 << 20}, nil)))
		}
		require.False(t, tryWrite(t, two, message(2, []int{10_000}, nil))) // more than the budget has left
		require.Zero(t, two.Stats().BytesInFlight)
		one.Abort(errEnough)
		for _, op := range large {
			require.ErrorIs(t, op.Wait(t.Context()), errEnough)
		}
		require.True(t, tryWrite(t, two, message(3, []int{10}, nil)))
		expect(t, server, message(3, []int{10}, nil))
	})
}

// TestTryWriteCompatible checks that in the compatible dialect, which copies nothing, TryWrite
// accepts no message.
func TestTryWriteCompatible(t *testing.T) {
	client, _ := connect(t, memPath())
	require.False(t, tryWrite(t, client, message(1, []int{10}, nil)))
	require.Zero(t, client.Stats().BytesInFlight)
}

// TestTryWriteCopies checks that TryWrite accepts messages even if the ring of shared memory is
// full. The caller may overwrite a message as soon as TryWrite returns: the bytes that arrive are
// the original ones.
func TestTryWriteCopies(t *testing.T) {
	client, server := connect(t, pathNamed("shm+basic+native"))
	const count, size = 16, 512 << 10
	for i := range count {
		m := message(i, nil, []int{size}, device.CPU())
		require.True(t, tryWrite(t, client, m))
		for _, p := range m.Tensors[0].Buffer.AppendSegments(nil) {
			clear(p)
		}
	}
	for i := range count {
		expect(t, server, message(i, nil, []int{size}, device.CPU()))
	}
}
