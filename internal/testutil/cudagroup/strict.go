package cudagroup

import (
	"bytes"
	"context"
	"runtime"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// otherByte is what memory is overwritten with. Four of them are no number of a case.
const otherByte = 0xee

// overwriting makes channels that overwrite each tensor when its Send is done, on the tensor's stream, as an
// application may.
type overwriting struct {
	channel.Factory
	w *Worker
}

// strictly returns f in cases that see wrong bytes if a call of the driver is missing, those of a run of drops.
// Others use f as it is, because they send tensors several times.
func (w *Worker) strictly(f channel.Factory) channel.Factory {
	if !drops.Running() {
		return f
	}
	return overwriting{f, w}
}

// New returns an end that overwrites tensors.
func (f overwriting) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	if err != nil {
		return nil, err
	}
	return overwritingChannel{ch, f.w}, nil
}

type overwritingChannel struct {
	channel.Channel
	w *Worker
}

// Send overwrites src before it calls done.
func (c overwritingChannel) Send(id uint64, src device.Buffer, done func(error)) {
	c.Channel.Send(id, src, func(err error) {
		if err == nil && src.Stream() != nil && src.Len() > 0 {
			c.w.overwrite(src)
		}
		done(err)
	})
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

// copyLate copies x to d after slow work of the current stream, and uses page-locked memory that is free then.
func (w *Worker) copyLate(x *tensor.Tensor, d device.Device) (*tensor.Tensor, error) {
	if err := w.Sleep(w.ctx, d); err != nil {
		return nil, err
	}
	y, err := w.Engine.To(w.ctx, x, d)
	if err == nil {
		w.pageLocked(4<<10, device.StreamFrom(w.ctx, d))
	}
	return y, err
}

// hostData returns the elements of x, a tensor on a GPU, as the current stream of the case sees them.
func (w *Worker) hostData(x *tensor.Tensor) []float32 {
	b, err := x.Buffer()
	require.NoError(w, err)
	s := device.StreamFrom(w.ctx, x.Device())
	host := w.pageLocked(b.Len(), s)
	require.NoError(w, w.Kind.Copy(host, b.WithStream(s)))
	require.NoError(w, s.Synchronize(w.ctx))
	y, err := tensor.FromBuffer(host.WithStream(nil), x.DType(), x.Shape()...)
	require.NoError(w, err)
	data, err := tensor.Data[float32](y)
	require.NoError(w, err)
	data = append([]float32(nil), data...)
	runtime.KeepAlive(host)
	return data
}
