package cudagroup

import (
	"bytes"
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// otherByte is the byte that overwritten memory has. Four of them are no number of a case.
const otherByte = 0xee

// overwriter returns a function that overwrites the memory of x for n times SleepTime, on the stream on which it is
// valid or else the current one of ctx, and then restores the present bytes. It returns nil for memory of the host.
func (w *Worker) overwriter(ctx context.Context, x *tensor.Storage, n int) (overwrite func()) {
	b, err := x.Buffer()
	if err != nil || b.IsHost() || b.Len() == 0 {
		return nil
	}
	if b.Stream() == nil {
		b = b.WithStream(device.StreamFrom(ctx, b.Device()))
	}
	saved := w.save(b)
	return func() {
		if _, err := x.Buffer(); err == nil { // not released
			w.overwriteFor(b, saved, n)
		}
	}
}

// save returns a copy of b in page-locked memory, valid on the stream of b.
func (w *Worker) save(b device.Buffer) device.Buffer {
	saved, err := w.Kind.AllocHost(b.Len(), b.Stream())
	require.NoError(w, err)
	require.NoError(w, w.Kind.Copy(saved, b))
	return saved
}

// overwriteFor overwrites b for n times SleepTime, on its stream, and then restores the saved bytes.
func (w *Worker) overwriteFor(b, saved device.Buffer, n int) {
	w.overwrite(b)
	require.NoError(w, w.Kind.Sleep(b.Stream(), time.Duration(n)*SleepTime))
	require.NoError(w, w.Kind.Copy(b, saved))
}

// OverwriteFor overwrites x, which must be contiguous, for n times SleepTime in a run of drops, and then restores its bytes.
// Both are on the current stream of ctx, which is not ordered with others.
func (w *Worker) OverwriteFor(ctx context.Context, x *tensor.Tensor, n int) {
	if !drops.Running() {
		return
	}
	b := w.current(ctx, x)
	w.overwriteFor(b, w.save(b), n)
}

// OverwriteHalves is OverwriteFor for the first half of x on the stream on which x is valid, and for the second half on the
// current stream of ctx. One is later than the other, in one try the first half and in the next one the second half. So
// work that uses x must wait for both streams.
func (w *Worker) OverwriteHalves(ctx context.Context, x *tensor.Tensor) {
	if !drops.Running() {
		return
	}
	first, err := x.Buffer()
	require.NoError(w, err)
	half := first.Len() / 2
	second := w.current(ctx, x).Slice(half, first.Len()-half)
	first = first.Slice(0, half)
	w.overwriteFor(first, w.save(first), LateSource())
	w.overwriteFor(second, w.save(second), LateTarget())
}

// current returns the memory of x as valid on the current stream of ctx.
func (w *Worker) current(ctx context.Context, x *tensor.Tensor) device.Buffer {
	x, err := Current(ctx, x)
	require.NoError(w, err)
	b, err := x.Buffer()
	require.NoError(w, err)
	return b
}

// SleepFor makes the current stream of ctx on d wait for n times SleepTime in a run of drops.
func (w *Worker) SleepFor(ctx context.Context, d device.Device, n int) {
	if drops.Running() {
		require.NoError(w, w.Kind.Sleep(device.StreamFrom(ctx, d), time.Duration(n)*SleepTime))
	}
}

// WaitFor makes the current stream of ctx on d wait for that of before in a run of drops.
func (w *Worker) WaitFor(ctx, before context.Context, d device.Device) {
	if drops.Running() {
		require.NoError(w, device.StreamFrom(ctx, d).WaitFor(device.StreamFrom(before, d)))
	}
}

// overwrite enqueues that b has other bytes.
func (w *Worker) overwrite(b device.Buffer) {
	other := w.pageLocked(b.Len(), b.Stream())
	require.NoError(w, w.Kind.Copy(b, other))
}

// pageLocked returns n bytes of page-locked memory with other bytes.
func (w *Worker) pageLocked(n int, s device.Stream) device.Buffer {
	b, err := w.Kind.AllocHost(n, s)
	require.NoError(w, err)
	p, _ := b.Contiguous()
	copy(p, bytes.Repeat([]byte{otherByte}, n))
	return b
}
