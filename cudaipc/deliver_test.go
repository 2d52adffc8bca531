package cudaipc

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Two streams that wait for each other again and again share one delivery, and not copies of it.
func TestDeliveriesDoNotMultiply(t *testing.T) {
	f := newFixture(t, Options{})
	a, b := f.stream(f.zero), f.stream(f.zero)
	p := make([]byte, 100)
	release := f.hold(a)
	require.NoError(t, f.Copy(device.Bytes(p), f.alloc(len(p), a)))
	for range 40 {
		require.NoError(t, b.WaitFor(a))
		require.NoError(t, a.WaitFor(b))
	}
	require.Len(t, a.deliveries.unfinished(), 1)
	require.Len(t, b.deliveries.unfinished(), 1)
	release()
	f.synchronize(b)
	require.Empty(t, a.deliveries.unfinished())
}

// Copies to the same host memory on one stream arrive in their order.
func TestDeliveriesAreInOrder(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	const size, copies = 100_000, 20
	release := f.hold(s)
	p := make([]byte, size)
	for i := range copies {
		b := f.alloc(size, s)
		f.write(b, bytes.Repeat([]byte{byte(i)}, size))
		require.NoError(t, f.Copy(device.Bytes(p), b))
	}
	release()
	f.synchronize(s)
	require.Equal(t, bytes.Repeat([]byte{copies - 1}, size), p)
}

// Host memory stays with its owner until a copy to it has ended, although nothing else refers to the buffer.
func TestDeliveryKeepsTheOwner(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	freed := make(chan struct{})
	release := f.hold(s)
	func() {
		owner := new([64]byte)
		runtime.AddCleanup(owner, func(freed chan struct{}) { close(freed) }, freed)
		require.NoError(t, f.Copy(device.Bytes(make([]byte, 100)).WithOwner(owner), f.alloc(100, s)))
	}()
	runtime.GC()
	runtime.GC()
	select {
	case <-freed:
		require.Fail(t, "the owner was freed before the copy")
	default:
	}
	release()
	f.synchronize(s)
}

// Trim joins the pieces of a segment that different streams have used.
func TestTrimJoinsPiecesOfStreams(t *testing.T) {
	f := newFixture(t, Options{MemoryLimit: sharedSegment})
	a, b := f.stream(f.zero), f.stream(f.zero)
	first, second := f.alloc(9<<20, a), f.alloc(9<<20, b)
	memory(first).release()
	memory(second).release()
	_, err := f.Alloc(f.zero, 16<<20, a)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.NoError(t, f.Trim(f.zero))
	require.Zero(t, f.stats(f.zero).Held)
	_, err = f.Alloc(f.zero, 16<<20, a)
	require.NoError(t, err)
}

// Sizes that no machine has are errors.
func TestAllocHostOfHugeSizes(t *testing.T) {
	f := newFixture(t, Options{})
	for _, size := range []int{int(^uint(0) >> 1), int(^uint(0)>>2) + 2} {
		_, err := f.AllocHost(size, f.stream(f.zero))
		require.Error(t, err)
	}
}
