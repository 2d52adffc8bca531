package tensor

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Sparse is a tensor in coordinate form: only some places are listed, all
// others are zero. A place listed more than once has the sum of its values.
//
// The first dimensions of the shape are sparse: column k of the indices, an
// I64 tensor of shape [sparse dimensions, n], says where the k-th value lies.
// The dimensions behind them are dense: each value is a tensor of that shape,
// and the values together have the shape [n, dense dimensions...]. Often there
// are none, and values are single numbers.
type Sparse struct {
	indices   *Tensor
	values    *Tensor
	shape     []int
	coalesced bool
}

// NewSparse makes a sparse tensor of that shape. It keeps both tensors, not
// copies, and they must not change any more. The error is a *DTypeError unless
// indices is I64, a *ShapeError where the shapes do not fit each other, an
// *IndexError for an index outside of the shape, or ErrOverlap where elements
// of either share memory: a little memory must not stand for many values.
func NewSparse(indices, values *Tensor, shape ...int) (*Sparse, error) {
	if indices.dtype != I64 {
		return nil, &DTypeError{Name: indices.dtype.String(), Reason: "cannot index a sparse tensor; want i64"}
	}
	if _, err := ByteSize(values.dtype, shape); err != nil {
		return nil, err
	}
	s := &Sparse{indices: indices, values: values, shape: slices.Clone(shape)}
	if err := s.checkShapes(); err != nil {
		return nil, err
	}
	if indices.selfOverlaps() || values.selfOverlaps() {
		return nil, ErrOverlap
	}
	places, err := s.places()
	if err != nil {
		return nil, err
	}
	s.coalesced = ascending(places)
	return s, nil
}

// checkShapes fails unless indices, values and shape belong together.
func (s *Sparse) checkShapes() error {
	if s.indices.Rank() != 2 {
		return &ShapeError{Shape: s.indices.shape, Reason: "cannot be that of indices; want [sparse dimensions, n]"}
	}
	sparse, n := s.indices.shape[0], s.indices.shape[1]
	if sparse > len(s.shape) {
		return &ShapeError{Shape: s.shape, Reason: fmt.Sprintf("has fewer dimensions than the %d of the indices", sparse)}
	}
	if want := append([]int{n}, s.shape[sparse:]...); !slices.Equal(s.values.shape, want) {
		return &ShapeError{Shape: s.values.shape, Reason: fmt.Sprintf("cannot be that of the values; want %v", want)}
	}
	return nil
}

// places is, for each value, the number of its place among the places of the
// sparse dimensions in row-major order.
func (s *Sparse) places() ([]int, error) {
	packed, owner, err := s.indices.packed()
	if err != nil {
		return nil, err
	}
	sparse, n := s.indices.shape[0], s.indices.shape[1]
	places := make([]int, n)
	for dim, size := range s.shape[:sparse] {
		for k := range places {
			index := load[int64](packed[(dim*n+k)*8:])
			if index < 0 || index >= int64(size) {
				return nil, &IndexError{What: fmt.Sprintf("sparse dimension %d", dim), Index: int(index), Len: size}
			}
			places[k] = places[k]*size + int(index)
		}
	}
	runtime.KeepAlive(owner)
	return places, nil
}

// ascending reports whether each place is listed once, in order.
func ascending(places []int) bool {
	for k := 1; k < len(places); k++ {
		if places[k] <= places[k-1] {
			return false
		}
	}
	return true
}

// DType is the type of the values.
func (s *Sparse) DType() DType { return s.values.dtype }

// Shape is the size of each dimension. The caller must not change it.
func (s *Sparse) Shape() []int { return s.shape }

// Indices says where the values lie: I64 [sparse dimensions, n].
func (s *Sparse) Indices() *Tensor { return s.indices }

// Values is the values: [n, dense dimensions...].
func (s *Sparse) Values() *Tensor { return s.values }

// Len is the number of values.
func (s *Sparse) Len() int { return s.indices.shape[1] }

// Device is where the values live.
func (s *Sparse) Device() device.Device { return s.values.Device() }

// Coalesced reports whether the places are listed in row-major order and none
// twice.
func (s *Sparse) Coalesced() bool { return s.coalesced }

// EqualSparse reports whether a and b have the same dtype and shape and list
// the same values, bit for bit, at the same places in the same order. Coalesce
// both first to compare what they stand for.
func EqualSparse(a, b *Sparse) (bool, error) {
	if !slices.Equal(a.shape, b.shape) {
		return false, nil
	}
	same, err := Equal(a.indices, b.indices)
	if err != nil || !same {
		return false, err
	}
	return Equal(a.values, b.values)
}
