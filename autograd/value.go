package autograd

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Value is a tensor, dense or sparse, without a graph: the data of a Variable, or a gradient. The zero
// Value is no tensor, and stands for a gradient that is zero everywhere.
type Value struct {
	dense  *tensor.Tensor
	sparse *tensor.Sparse

	// unique is set for a gradient whose memory nothing else holds, so that it may be changed in
	// place, and be kept without a copy.
	unique bool
}

// Dense returns t as a Value.
func Dense(t *tensor.Tensor) Value { return Value{dense: t} }

// Sparse returns s as a Value.
func Sparse(s *tensor.Sparse) Value { return Value{sparse: s} }

// Owned returns v as a gradient whose memory the caller hands over: it may be changed.
func Owned(v Value) Value {
	v.unique = true
	return v
}

// Shared returns v as a gradient whose memory others hold, too.
func (v Value) Shared() Value {
	v.unique = false
	return v
}

// Tensor returns the tensor if it is dense, and otherwise nil.
func (v Value) Tensor() *tensor.Tensor { return v.dense }

// Sparse returns the tensor if it is sparse, and otherwise nil.
func (v Value) Sparse() *tensor.Sparse { return v.sparse }

// IsZero reports whether v is the zero Value.
func (v Value) IsZero() bool { return v.dense == nil && v.sparse == nil }

// DType returns the type of the elements, 0 for the zero Value.
func (v Value) DType() tensor.DType {
	switch {
	case v.dense != nil:
		return v.dense.DType()
	case v.sparse != nil:
		return v.sparse.DType()
	}
	return 0
}

// Shape returns the size of each dimension, nil for the zero Value. The caller must not change it.
func (v Value) Shape() []int {
	switch {
	case v.dense != nil:
		return v.dense.Shape()
	case v.sparse != nil:
		return v.sparse.Shape()
	}
	return nil
}

// Device returns the device of the memory, the zero Device for the zero Value.
func (v Value) Device() device.Device {
	switch {
	case v.dense != nil:
		return v.dense.Device()
	case v.sparse != nil:
		return v.sparse.Device()
	}
	return device.Device{}
}

// String returns dtype and shape, such as "f32[2,3]" or "sparse f32[2 3]".
func (v Value) String() string {
	switch {
	case v.dense != nil:
		return v.dense.String()
	case v.sparse != nil:
		return fmt.Sprintf("sparse %v%v", v.DType(), v.Shape())
	}
	return "no tensor"
}

// ToDense returns the tensor as a dense one: itself, if it is dense, and otherwise a new one. The error
// is one of tensor.Sparse.ToDense, or matches ErrNoGradient for the zero Value.
func (v Value) ToDense() (*tensor.Tensor, error) {
	switch {
	case v.dense != nil:
		return v.dense, nil
	case v.sparse != nil:
		return v.sparse.ToDense()
	}
	return nil, ErrNoGradient
}

// memory returns the storages of v, of which there are at most two.
func (v Value) memory() (a, b *tensor.Storage) {
	switch {
	case v.dense != nil:
		return v.dense.Storage(), nil
	case v.sparse != nil:
		return v.sparse.Values().Storage(), v.sparse.Indices().Storage()
	}
	return nil, nil
}

// sharesMemory reports whether v and w have memory in common.
func (v Value) sharesMemory(w Value) bool {
	a, b := v.memory()
	c, d := w.memory()
	return a != nil && (a == c || a == d) || b != nil && (b == c || b == d)
}

// clone returns a copy of v in memory of its own, contiguous.
func (v Value) clone(ctx context.Context) (Value, error) {
	e := engineOf(ctx)
	if v.dense != nil {
		t, err := e.Clone(ctx, v.dense)
		return Value{dense: t, unique: true}, err
	}
	s, err := e.CloneSparse(ctx, v.sparse)
	return Value{sparse: s, unique: true}, err
}

// isMovable reports whether v may be kept as the gradient of a leaf, without a copy.
func (v Value) isMovable() bool {
	return v.unique && (v.sparse != nil || v.isWritable() && v.dense.ByteSize() == v.dense.Storage().Len())
}

// isWritable reports whether v, which is dense, may be changed in place.
func (v Value) isWritable() bool {
	return v.unique && v.dense != nil && v.dense.IsContiguous() && !v.dense.ReadOnly()
}

// sum returns the sum of two gradients of the same dtype and shape. It may change v in place if the
// memory of v is unique. Two sparse gradients have a sparse sum.
func (v Value) sum(ctx context.Context, w Value) (Value, error) {
	e := engineOf(ctx)
	switch {
	case v.IsZero():
		return w, nil
	case w.IsZero():
		return v, nil
	case v.sparse != nil && w.sparse != nil:
		s, err := e.AddSparse(ctx, v.sparse, w.sparse, ops.Int(1))
		return Value{sparse: s, unique: true}, err
	case v.sparse != nil:
		v, w = w, v
		fallthrough
	case w.sparse != nil:
		if v.isWritable() {
			return v, e.AddSparseInPlace(ctx, v.dense, w.sparse, ops.Int(1))
		}
		t, err := e.AddDenseSparse(ctx, v.dense, w.sparse, ops.Int(1))
		return Value{dense: t, unique: true}, err
	case v.isWritable():
		return v, e.AddInPlace(ctx, v.dense, w.dense, ops.Int(1))
	case w.isWritable():
		return w, e.AddInPlace(ctx, w.dense, v.dense, ops.Int(1))
	}
	t, err := e.Add(ctx, v.dense, w.dense, ops.Int(1))
	return Value{dense: t, unique: true}, err
}

// form is the dtype, the shape and the device of a tensor.
type form struct {
	dtype tensor.DType
	rank  uint8
	dims  [4]int
	more  []int          // all dimensions, if there are more than 4
	on    *device.Device // nil for the host
}

func formOf(v Value) form {
	shape := v.Shape()
	f := form{dtype: v.DType(), rank: uint8(len(shape))}
	if copy(f.dims[:], shape) < len(shape) {
		f.more = slices.Clone(shape)
	}
	if on := v.Device(); !isHost(on) {
		elsewhere := on
		f.on = &elsewhere
	}
	return f
}

func isHost(d device.Device) bool { return d.Kind == device.KindCPU || d.IsZero() }

// device returns the device, cpu:0 for the host.
func (f *form) device() device.Device {
	if f.on != nil {
		return *f.on
	}
	return device.CPU()
}

// isAt reports whether v is on the device of f.
func (f *form) isAt(v Value) bool {
	on := v.Device()
	if f.on != nil {
		return on == *f.on
	}
	return isHost(on)
}

// shape returns the size of each dimension.
func (f *form) shape() []int {
	if f.more != nil {
		return f.more
	}
	return f.dims[:f.rank]
}

// move returns the gradient v on the device of f: v itself if it is there.
func (f *form) move(ctx context.Context, v Value) (Value, error) {
	if v.IsZero() || f.isAt(v) {
		return v, nil
	}
	if v.dense == nil {
		return v, &ops.DeviceMismatchError{First: f.device(), Second: v.Device()}
	}
	t, err := engineOf(ctx).To(ctx, v.dense, f.device())
	return Value{dense: t, unique: true}, err
}

// zeros returns a gradient of that form that is zero everywhere.
func (f *form) zeros(ctx context.Context) (Value, error) {
	t, err := engineOf(ctx).FullOn(ctx, f.device(), f.dtype, ops.Int(0), f.shape()...)
	return Value{dense: t, unique: true}, err
}

// fit returns the gradient v for a tensor of that form: its dtype is converted, and it is summed over
// the dimensions in which the tensor was broadcast. A gradient without dimensions is moved to the device of
// the tensor. The error is a *GradientError if the shapes do not fit, and a *ops.DeviceMismatchError if the
// devices do not.
func (f *form) fit(ctx context.Context, v Value) (Value, error) {
	if v.IsZero() {
		return v, nil
	}
	if !f.isAt(v) {
		if len(v.Shape()) > 0 {
			return v, &ops.DeviceMismatchError{First: f.device(), Second: v.Device()}
		}
		var err error
		if v, err = f.move(ctx, v); err != nil {
			return v, err
		}
	}
	if shape := v.Shape(); !slices.Equal(shape, f.shape()) {
		if v.dense == nil {
			// The sum over dimensions is not defined for sparse gradients.
			return v, &GradientError{Got: slices.Clone(shape), Want: slices.Clone(f.shape())}
		}
		t, err := engineOf(ctx).SumTo(ctx, v.dense, f.shape()...)
		if err != nil {
			return v, &GradientError{Got: slices.Clone(shape), Want: slices.Clone(f.shape()), Err: err}
		}
		v = Value{dense: t, unique: v.unique || t.Storage() != v.dense.Storage()}
	}
	if v.DType() == f.dtype {
		return v, nil
	}
	e := engineOf(ctx)
	if v.dense != nil {
		t, err := e.Cast(ctx, v.dense, f.dtype)
		return Value{dense: t, unique: true}, err
	}
	s, err := e.CastSparse(ctx, v.sparse, f.dtype)
	return Value{sparse: s, unique: true}, err
}
