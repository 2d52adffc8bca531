package tensor

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Sparse is a tensor in coordinate form: it lists the values of some positions, and all others are
// zero. A position that is listed repeatedly has the sum of its values.
//
// The first dimensions of the shape are sparse: column k of the indices, an I64 tensor of shape [sparse
// dimensions, n], is the position of the k-th value. The remaining dimensions are dense: each value is
// a tensor of that shape, and the values together have the shape [n, dense dimensions...]. Often there
// are none, and each value is a single number.
type Sparse struct {
	indices   *Tensor
	values    *Tensor
	shape     []int
	coalesced bool
}

// NewSparse returns a sparse tensor of that shape. It retains both tensors, whose elements the caller
// must not change any more. The error is a *DTypeError unless indices is I64, a *ShapeError if the
// shapes are inconsistent, an *IndexError for an index outside the shape, ErrOverlap if elements of
// either tensor share memory, since a peer could otherwise claim many values with little memory, or
// ErrReleased or a *DeviceError if the indices cannot be read.
func NewSparse(indices, values *Tensor, shape ...int) (*Sparse, error) {
	if indices.dtype != I64 {
		return nil, &DTypeError{Name: indices.dtype.String(), Reason: "cannot index a sparse tensor; want i64"}
	}
	if _, err := ByteSize(values.dtype, shape); err != nil {
		return nil, err
	}
	if indices.Rank() != 2 {
		return nil, &ShapeError{Shape: indices.shape, Reason: "cannot be that of indices; want [sparse dimensions, n]"}
	}
	sparse, n := indices.shape[0], indices.shape[1]
	if sparse > len(shape) {
		return nil, &ShapeError{Shape: shape, Reason: fmt.Sprintf("has fewer dimensions than the %d of the indices", sparse)}
	}
	if want := append([]int{n}, shape[sparse:]...); !slices.Equal(values.shape, want) {
		return nil, &ShapeError{Shape: values.shape, Reason: fmt.Sprintf("cannot be that of the values; want %v", want)}
	}
	if indices.selfOverlaps() || values.selfOverlaps() {
		return nil, ErrOverlap
	}
	s := &Sparse{indices: indices, values: values, shape: slices.Clone(shape)}
	positions, err := s.positions()
	if err != nil {
		return nil, err
	}
	s.coalesced = ascending(positions)
	return s, nil
}

// positions returns, for each value, its position in the sparse dimensions as a row-major index. The
// error is an *IndexError for an index outside the shape, ErrReleased or a *DeviceError.
func (s *Sparse) positions() ([]int, error) {
	packed, owner, err := s.indices.packed()
	if err != nil {
		return nil, err
	}
	sparse, n := s.indices.shape[0], s.indices.shape[1]
	positions := make([]int, n)
	for dim, size := range s.shape[:sparse] {
		for k := range positions {
			index := load[int64](packed[(dim*n+k)*8:])
			if index < 0 || index >= int64(size) {
				return nil, &IndexError{What: fmt.Sprintf("sparse dimension %d", dim), Index: int(index), Len: size}
			}
			positions[k] = positions[k]*size + int(index)
		}
	}
	runtime.KeepAlive(owner)
	return positions, nil
}

// ascending reports whether each position is greater than the one before it.
func ascending(positions []int) bool {
	for k := 1; k < len(positions); k++ {
		if positions[k] <= positions[k-1] {
			return false
		}
	}
	return true
}

// DType returns the type of the values.
func (s *Sparse) DType() DType { return s.values.dtype }

// Shape returns the size of each dimension. The caller must not change it.
func (s *Sparse) Shape() []int { return s.shape }

// Indices returns the positions of the values, not a copy: I64 [sparse dimensions, n].
func (s *Sparse) Indices() *Tensor { return s.indices }

// Values returns the values, not a copy: [n, dense dimensions...].
func (s *Sparse) Values() *Tensor { return s.values }

// Len returns the number of values.
func (s *Sparse) Len() int { return s.indices.shape[1] }

// Device returns the device of the values.
func (s *Sparse) Device() device.Device { return s.values.Device() }

// Coalesced reports whether the positions are listed in row-major order without duplicates.
func (s *Sparse) Coalesced() bool { return s.coalesced }

// EqualSparse reports whether a and b have the same dtype and shape and list the same values, bit for
// bit, at the same positions in the same order. Coalesce both first to compare the represented tensors.
// The error is ErrReleased or a *DeviceError.
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

// Coalesce returns a tensor that lists each position once, in row-major order, with the sum of its
// values: s itself if it is coalesced, otherwise a copy on the Go heap. Values are added in the order
// in which they are listed, and each sum is rounded to the dtype. The error is a *DTypeError for bools
// at the same position, which have no sum, ErrReleased or a *DeviceError.
func (s *Sparse) Coalesce() (*Sparse, error) {
	if s.coalesced {
		return s, nil
	}
	positions, err := s.positions()
	if err != nil {
		return nil, err
	}
	order := make([]int, len(positions))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(positions[a], positions[b]) })
	groups := groupByPosition(order, positions)
	indices, err := s.pickIndices(groups)
	if err != nil {
		return nil, err
	}
	values, err := s.sumValues(groups)
	if err != nil {
		return nil, err
	}
	return &Sparse{indices: indices, values: values, shape: s.shape, coalesced: true}, nil
}

// groupByPosition divides order, which lists the numbers of the values sorted by position, into one
// slice for each position. The slices share the memory of order.
func groupByPosition(order, positions []int) [][]int {
	var groups [][]int
	for start, end := 0, 0; start < len(order); start = end {
		for end < len(order) && positions[order[end]] == positions[order[start]] {
			end++
		}
		groups = append(groups, order[start:end])
	}
	return groups
}

// pickIndices returns the indices, an I64 tensor of shape [sparse dimensions, number of groups], of the
// first value of each group. A group is a list of numbers of values and is not empty. The error is
// ErrReleased or a *DeviceError.
func (s *Sparse) pickIndices(groups [][]int) (*Tensor, error) {
	packed, owner, err := s.indices.packed()
	if err != nil {
		return nil, err
	}
	sparse, n := s.indices.shape[0], s.indices.shape[1]
	picked := make([]int64, 0, sparse*len(groups))
	for dim := range sparse {
		for _, group := range groups {
			picked = append(picked, load[int64](packed[(dim*n+group[0])*8:]))
		}
	}
	runtime.KeepAlive(owner)
	return FromSlice(picked, sparse, len(groups))
}

// sumValues returns a tensor on the Go heap with one value for each group: the sum of the values whose
// numbers the group lists. The error is a *DTypeError if a group has several values and the dtype has
// no sum, ErrReleased or a *DeviceError.
func (s *Sparse) sumValues(groups [][]int) (*Tensor, error) {
	packed, owner, err := s.values.packed()
	if err != nil {
		return nil, err
	}
	add, ok := adders[s.values.dtype]
	if !ok && len(groups) < s.Len() {
		return nil, &DTypeError{Name: s.values.dtype.String(), Reason: "cannot be summed, and a position is listed twice"}
	}
	sum, err := Zeros(s.values.dtype, append([]int{len(groups)}, s.values.shape[1:]...)...)
	if err != nil {
		return nil, err
	}
	size := len(packed) / max(s.Len(), 1)
	for i, group := range groups {
		to := sum.storage.host[i*size:][:size]
		copy(to, packed[group[0]*size:])
		for _, k := range group[1:] {
			add(to, packed[k*size:])
		}
	}
	runtime.KeepAlive(owner)
	return sum, nil
}

// ToDense returns the represented tensor, contiguous and on the Go heap. A few values can represent a
// huge tensor: bound the shape that a peer claims. The error is that of Coalesce, a *SizeError or a
// *DeviceError.
func (s *Sparse) ToDense() (*Tensor, error) {
	s, err := s.Coalesce()
	if err != nil {
		return nil, err
	}
	positions, err := s.positions()
	if err != nil {
		return nil, err
	}
	packed, owner, err := s.values.packed()
	if err != nil {
		return nil, err
	}
	dense, err := Zeros(s.values.dtype, s.shape...)
	if err != nil {
		return nil, err
	}
	size := len(packed) / max(len(positions), 1)
	for k, position := range positions {
		copy(dense.storage.host[position*size:], packed[k*size:][:size])
	}
	runtime.KeepAlive(owner)
	return dense, nil
}

// adders contains, for each dtype that has a sum, a function that adds packed elements to as many
// others.
var adders = map[DType]func(sum, values []byte){
	U8:   addNumbers[uint8],
	I8:   addNumbers[int8],
	I16:  addNumbers[int16],
	I32:  addNumbers[int32],
	I64:  addNumbers[int64],
	F16:  addFloat16s,
	BF16: addBFloat16s,
	F32:  addNumbers[float32],
	F64:  addNumbers[float64],
	C64:  addNumbers[complex64],
	C128: addNumbers[complex128],
}

// addNumbers adds the elements of values to those of sum, which has the same length.
func addNumbers[T uint8 | int8 | int16 | int32 | int64 | float32 | float64 | complex64 | complex128](sum, values []byte) {
	size := DTypeOf[T]().Size()
	for at := 0; at < len(sum); at += size {
		store(sum[at:], load[T](sum[at:])+load[T](values[at:]))
	}
}

// addFloat16s is addNumbers for F16. Each sum is computed as float32 and rounded.
func addFloat16s(sum, values []byte) {
	for at := 0; at < len(sum); at += 2 {
		store(sum[at:], ToFloat16(load[Float16](sum[at:]).Float32()+load[Float16](values[at:]).Float32()))
	}
}

// addBFloat16s is addNumbers for BF16. Each sum is computed as float32 and rounded.
func addBFloat16s(sum, values []byte) {
	for at := 0; at < len(sum); at += 2 {
		store(sum[at:], ToBFloat16(load[BFloat16](sum[at:]).Float32()+load[BFloat16](values[at:]).Float32()))
	}
}
