package ops_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// kernels computes with F32 on the devices of a kind whose streams are late.
type kernels struct{ kind *delayed.Kind }

func (k kernels) Alloc(ctx context.Context, d device.Device, dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	size, err := tensor.ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	buf, err := k.kind.Alloc(d, size, device.StreamFrom(ctx, d))
	if err != nil {
		return nil, err
	}
	return tensor.FromBuffer(buf, dtype, shape...)
}

func (k kernels) Move(dst, src device.Buffer) error { return k.kind.Copy(dst, src) }

// run enqueues a call of f for each element of dst, on the stream of dst and after the work of the
// streams of the others. f gets the element of dst and those of the others at the same index.
func (k kernels) run(f func(to *float32, from []float32), dst *tensor.Tensor, others ...*tensor.Tensor) error {
	return k.launch(func(mem ...[]byte) {
		from := make([]float32, len(others))
		for i := range dst.Len() {
			for j, t := range others {
				from[j] = deviceElement(mem[j+1], t, i)
			}
			to := deviceElement(mem[0], dst, i)
			f(&to, from)
			setDeviceElement(mem[0], dst, i, to)
		}
	}, append([]*tensor.Tensor{dst}, others...)...)
}

// launch enqueues a call of f with the memory of all tensors, on the stream of the first and after the work
// of the streams of the others.
func (k kernels) launch(f func(mem ...[]byte), all ...*tensor.Tensor) error {
	var memory []device.Buffer
	for _, t := range all {
		buf, err := t.Storage().Buffer()
		if err != nil {
			return err
		}
		memory = append(memory, buf)
	}
	stream := memory[0].Stream().(*delayed.Stream)
	for _, buf := range memory[1:] {
		ev, err := buf.Stream().Record()
		if err != nil {
			return err
		}
		if err := stream.Wait(ev); err != nil {
			return err
		}
	}
	return stream.Launch(func(mem ...[]byte) error {
		f(mem...)
		return nil
	}, memory...)
}

// deviceElement returns element i of t, whose storage has the memory p.
func deviceElement(p []byte, t *tensor.Tensor, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(p[position(t, i):]))
}

func setDeviceElement(p []byte, t *tensor.Tensor, i int, v float32) {
	binary.LittleEndian.PutUint32(p[position(t, i):], math.Float32bits(v))
}

// position returns the byte in the storage of t at which element i begins.
func position(t *tensor.Tensor, i int) int {
	at := t.Offset()
	for dim := t.Rank() - 1; dim >= 0; dim-- {
		at += i % t.Shape()[dim] * t.Strides()[dim]
		i /= t.Shape()[dim]
	}
	return t.DType().Size() * at
}

func (k kernels) Fill(_ context.Context, dst *tensor.Tensor, value ops.Number) error {
	return k.run(func(to *float32, _ []float32) { *to = float32(value.Float64()) }, dst)
}

func (k kernels) Copy(_ context.Context, dst, src *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) { *to = from[0] }, dst, src)
}

func (k kernels) Add(_ context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	a := float32(alpha.Float64())
	return k.run(func(to *float32, from []float32) { *to = from[0] + a*from[1] }, dst, x, y)
}

func (k kernels) Sub(_ context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	a := float32(alpha.Float64())
	return k.run(func(to *float32, from []float32) { *to = from[0] - a*from[1] }, dst, x, y)
}

func (k kernels) Mul(_ context.Context, dst, x, y *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) { *to = from[0] * from[1] }, dst, x, y)
}

func (k kernels) Div(_ context.Context, dst, x, y *tensor.Tensor) error {
	return k.run(func(to *float32, from []float32) { *to = from[0] / from[1] }, dst, x, y)
}

func (k kernels) Scale(_ context.Context, dst, x *tensor.Tensor, factor ops.Number) error {
	return k.run(func(to *float32, from []float32) { *to = float32(factor.Float64()) * from[0] }, dst, x)
}

func (k kernels) Sum(ctx context.Context, dst, x *tensor.Tensor, dims []int) error {
	if err := k.Fill(ctx, dst, ops.Int(0)); err != nil {
		return err
	}
	strides := slices.Clone(dst.Strides())
	for _, dim := range dims {
		strides[dim] = 0
	}
	repeated, err := tensor.Strided(dst.Storage(), tensor.F32, x.Shape(), strides, dst.Offset())
	if err != nil {
		return err
	}
	return k.run(func(to *float32, from []float32) { *to += from[0] }, repeated, x)
}

func (k kernels) MatMul(ctx context.Context, dst, x, y *tensor.Tensor) error {
	if err := k.Fill(ctx, dst, ops.Int(0)); err != nil {
		return err
	}
	last := x.Rank() - 1
	for i := range x.Shape()[last] { // the sum of products of a column and a row
		column, err := x.Narrow(last, i, 1)
		if err != nil {
			return err
		}
		row, err := y.Narrow(last-1, i, 1)
		if err != nil {
			return err
		}
		if column, err = column.Expand(dst.Shape()...); err != nil {
			return err
		}
		if row, err = row.Expand(dst.Shape()...); err != nil {
			return err
		}
		if err := k.run(func(to *float32, from []float32) { *to += from[0] * from[1] }, dst, column, row); err != nil {
			return err
		}
	}
	return nil
}
