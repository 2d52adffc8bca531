package cudaipc

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Kernels returns the operators on tensors of k, for [ops.Engine]. They compute with F32 and F64, and
// fill and copy tensors of every dtype. Other dtypes give a *tensor.DTypeError.
//
// The kernels of a device are loaded when they are first used. They are simple: one thread computes an
// element, and tensors that are not contiguous are copied first, except those of products.
func (k *Kind) Kernels() ops.Kernels { return kernels{k} }

type kernels struct{ kind *Kind }

// Alloc returns a tensor whose memory Storage.Release returns to the Kind at once.
func (k kernels) Alloc(ctx context.Context, d device.Device, dtype tensor.DType, shape ...int) (*tensor.Tensor, error) {
	size, err := tensor.ByteSize(dtype, shape)
	if err != nil {
		return nil, err
	}
	g, err := k.kind.gpuOf(d)
	if err != nil {
		return nil, err
	}
	s, err := g.streamFor(device.StreamFrom(ctx, d))
	if err != nil {
		return nil, err
	}
	m, err := g.alloc(size, s)
	if err != nil {
		return nil, err
	}
	storage, err := tensor.NewStorage(device.On(d, m, s), m.release)
	if err != nil {
		return nil, err
	}
	return tensor.FromStorage(storage, dtype, shape...)
}

func (k kernels) Move(dst, src device.Buffer) error { return k.kind.Copy(dst, src) }

func (k kernels) Fill(ctx context.Context, dst *tensor.Tensor, value ops.Number) error {
	words, err := elementWords(ctx, dst.DType(), value)
	if err != nil || dst.Len() == 0 {
		return err
	}
	size := dst.DType().Size()
	return k.kind.run(func(w *work) error {
		if len(words) == 1 && dst.IsContiguous() {
			return w.launch("fill", dst.Len(), uint64(w.dst.ptr), uint64(dst.Len()), uint64(size), words[0])
		}
		one, err := w.temp(1, size)
		if err != nil {
			return err
		}
		for i, word := range words {
			if err := w.launch("fill", 1, uint64(one)+uint64(i*widest), 1, uint64(min(size, widest)), word); err != nil {
				return err
			}
		}
		return w.copy(w.dst.ptr, one, newLayout(size, dst.Shape(), dst.Strides(), make([]int, dst.Rank())))
	}, dst)
}

// elementWords returns the bytes of an element with the value, in words of 8 bytes, of which the last
// is padded with zeros.
func elementWords(ctx context.Context, d tensor.DType, value ops.Number) ([]uint64, error) {
	one, err := tensor.Zeros(d)
	if err != nil {
		return nil, err
	}
	if err := (&ops.Engine{}).FillInPlace(ctx, one, value); err != nil {
		return nil, err
	}
	p, err := one.Storage().Bytes()
	if err != nil {
		return nil, err
	}
	var words []uint64
	for word := range slices.Chunk(p[:d.Size()], widest) {
		var padded [widest]byte
		copy(padded[:], word)
		words = append(words, binary.NativeEndian.Uint64(padded[:]))
	}
	return words, nil
}

func (k kernels) Copy(_ context.Context, dst, src *tensor.Tensor) error {
	if err := checkOperands(dst, src); err != nil || dst.Len() == 0 {
		return err
	}
	return k.kind.run(func(w *work) error {
		return w.copy(w.dst.ptr, w.sources[0].ptr, newLayout(dst.DType().Size(), dst.Shape(), dst.Strides(), src.Strides()))
	}, dst, src)
}

func (k kernels) Add(_ context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	return k.elementwise(kernelName("add", dst), []uint64{math.Float64bits(alpha.Float64())}, dst, x, y)
}

func (k kernels) Sub(_ context.Context, dst, x, y *tensor.Tensor, alpha ops.Number) error {
	return k.elementwise(kernelName("add", dst), []uint64{math.Float64bits(-alpha.Float64())}, dst, x, y)
}

func (k kernels) Mul(_ context.Context, dst, x, y *tensor.Tensor) error {
	return k.elementwise(kernelName("mul", dst), nil, dst, x, y)
}

func (k kernels) Div(_ context.Context, dst, x, y *tensor.Tensor) error {
	return k.elementwise(kernelName("div", dst), nil, dst, x, y)
}

func (k kernels) Scale(_ context.Context, dst, x *tensor.Tensor, factor ops.Number) error {
	return k.elementwise(kernelName("scale", dst), []uint64{math.Float64bits(factor.Float64())}, dst, x)
}

// mapped are the functions of the kernel map, in the order of their numbers.
var mapped = []ops.Function{
	ops.FunctionExp, ops.FunctionLog, ops.FunctionSqrt, ops.FunctionTanh, ops.FunctionSigmoid, ops.FunctionRelu,
}

func (k kernels) Map(_ context.Context, f ops.Function, dst, x *tensor.Tensor) error {
	number := slices.Index(mapped, f)
	if number < 0 {
		return &tensor.DeviceError{Device: dst.Device()}
	}
	return k.elementwise("map", []uint64{uint64(dst.DType().Size()), uint64(number)}, dst, x)
}

func (k kernels) ReluBackward(_ context.Context, dst, grad, out *tensor.Tensor) error {
	return k.elementwise("relu_backward", []uint64{uint64(dst.DType().Size())}, dst, grad, out)
}

// elementwise sets dst with the kernel of that name, whose parameters are addresses, the number of
// elements, and numbers.
func (k kernels) elementwise(name string, numbers []uint64, dst *tensor.Tensor, sources ...*tensor.Tensor) error {
	if err := checkArithmetic(dst); err != nil {
		return err
	}
	if err := checkOperands(dst, sources...); err != nil || dst.Len() == 0 {
		return err
	}
	return k.kind.run(func(w *work) error {
		out, err := w.output(w.dst)
		if err != nil {
			return err
		}
		args := []uint64{uint64(out)}
		for _, o := range w.sources {
			p, err := w.contiguous(o)
			if err != nil {
				return err
			}
			args = append(args, uint64(p))
		}
		args = append(append(args, uint64(dst.Len())), numbers...)
		if err := w.launch(name, dst.Len(), args...); err != nil {
			return err
		}
		return w.store(w.dst, out)
	}, dst, sources...)
}

// kernelName returns the name of the kernel that computes with the dtype of t.
func kernelName(name string, t *tensor.Tensor) string { return name + "_" + t.DType().String() }

// checkArithmetic returns a *tensor.DTypeError unless there are kernels that compute with the dtype
// of t.
func checkArithmetic(t *tensor.Tensor) error {
	if d := t.DType(); d != tensor.F32 && d != tensor.F64 {
		return &tensor.DTypeError{Name: d.String(), Reason: "kernels of cuda devices compute with f32 and f64"}
	}
	return nil
}

// checkOperands returns an error unless all sources have the dtype and the shape of dst.
func checkOperands(dst *tensor.Tensor, sources ...*tensor.Tensor) error {
	for _, t := range sources {
		if err := checkDType(dst, t); err != nil {
			return err
		}
		if !slices.Equal(t.Shape(), dst.Shape()) {
			return &tensor.ShapeError{Shape: t.Shape(), Reason: fmt.Sprintf("must be %v, that of the destination", dst.Shape())}
		}
	}
	return nil
}

// checkDType returns a *tensor.DTypeError unless t has the dtype of dst.
func checkDType(dst, t *tensor.Tensor) error {
	if t.DType() != dst.DType() {
		return &tensor.DTypeError{Name: t.DType().String(), Reason: "must be " + dst.DType().String() + ", that of the destination"}
	}
	return nil
}

// deviceMismatch returns the error of tensors on two devices.
func deviceMismatch(dst, t *tensor.Tensor) error {
	return &ops.DeviceMismatchError{First: dst.Device(), Second: t.Device()}
}
