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

// NewSparse returns a sparse tensor of the given shape. indices lists the positions of the elements
// in values, as Sparse describes. NewSparse copies shape and retains both tensors, whose elements
// the caller must not change any more.
//
// The error is a *DTypeError unless indices is I64 and values has a valid dtype, a *ShapeError if
// the three shapes do not fit together, an *IndexError for an index outside shape, and ErrOverlap
// if elements of either tensor may share memory, because a peer could otherwise claim many values
// with little memory. It is ErrReleased after Release of the indices.
//
// Indices on a device, or valid on a stream, are not read, and the result counts as not coalesced: an index outside shape
// is found by the operator that uses it.
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
	memory, err := indices.storage.Buffer()
	if err != nil {
		return nil, err
	}
	if !memory.IsHost() || memory.Stream() != nil {
		return s, nil
	}
	positions, err := s.positions()
	if err != nil {
		return nil, err
	}
	s.coalesced = ascending(positions)
	return s, nil
}

// positions returns, for each value, its position in the sparse dimensions as one row-major index,
// in a new slice. The error is an *IndexError for an index outside the shape, ErrReleased after
// Release of the indices, a *DeviceError if the host cannot address them, or a *SizeError if they
// are too large to copy.
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

// ascending reports whether each number in positions is greater than the one before it. It is true
// for fewer than two numbers.
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

// Shape returns the size of each dimension of the represented tensor. The slice is s's own, which
// the caller must not change.
func (s *Sparse) Shape() []int { return s.shape }

// Indices returns the positions of the values: an I64 tensor of shape [sparse dimensions, n]. It is
// s's own, whose elements the caller must not change.
func (s *Sparse) Indices() *Tensor { return s.indices }

// Values returns the values: a tensor of shape [n, dense dimensions...]. It is s's own, whose
// elements the caller must not change.
func (s *Sparse) Values() *Tensor { return s.values }

// Len returns the number of listed values, including those at a position that is listed twice. Each
// value has the dense dimensions.
func (s *Sparse) Len() int { return s.indices.shape[1] }

// Device returns the device of the values.
func (s *Sparse) Device() device.Device { return s.values.Device() }

// Coalesced reports whether the positions of s are in row-major order without duplicates, as
// Coalesce lists them.
func (s *Sparse) Coalesced() bool { return s.coalesced }

// EqualSparse reports whether a and b have the same dtype and shape and list the same values, bit
// for bit, at the same positions in the same order. Coalesce both first to compare the represented
// tensors. The error is ErrReleased after Release of a part, or a *DeviceError if the host cannot
// address the memory. Tensors of different shapes give false without an error.
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
// values. That is s itself if s is coalesced already, and otherwise a new tensor on the Go heap.
// Values are added in the order in which they are listed, and each sum is rounded to the dtype. The
// error is a *DTypeError for bools at the same position, which have no sum, ErrReleased after
// Release, or a *DeviceError if the host cannot address the memory.
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

// groupByPosition divides order into one slice for each position, and returns these slices. order
// lists the numbers of the values, sorted by position; positions has the position of each value.
// The slices share the memory of order.
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

// pickIndices returns a new I64 tensor of shape [sparse dimensions, number of groups], on the Go
// heap, with the indices of the first value of each group. A group is a list of numbers of values
// and is not empty. The error is ErrReleased after Release, or a *DeviceError if the host cannot
// address the indices.
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

// sumValues returns a new tensor on the Go heap with one value for each group: the sum of the
// values whose numbers the group lists. The error is a *DTypeError if a group has several values
// and the dtype is Bool, which has no sum. It is ErrReleased after Release, or a *DeviceError if
// the host cannot address the values.
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

// ToDense returns the represented tensor as a new contiguous tensor on the Go heap. A few values
// can represent a huge tensor: bound the shape that a peer claims. The error is one of those of
// Coalesce, a *SizeError if the tensor is too large to allocate, or a *DeviceError if the host
// cannot address the values.
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

// addNumbers adds the elements of values to those of sum, in place. Both slices hold elements of
// type T as bytes. values must be at least as long as sum; more elements are ignored.
func addNumbers[T uint8 | int8 | int16 | int32 | int64 | float32 | float64 | complex64 | complex128](sum, values []byte) {
	size := DTypeOf[T]().Size()
	for at := 0; at < len(sum); at += size {
		store(sum[at:], load[T](sum[at:])+load[T](values[at:]))
	}
}

// addFloat16s adds the F16 elements of values to those of sum, in place, as addNumbers does. Each
// sum is computed as float32 and rounded.
func addFloat16s(sum, values []byte) {
	for at := 0; at < len(sum); at += 2 {
		store(sum[at:], ToFloat16(load[Float16](sum[at:]).Float32()+load[Float16](values[at:]).Float32()))
	}
}

// addBFloat16s adds the BF16 elements of values to those of sum, in place, as addNumbers does. Each
// sum is computed as float32 and rounded.
func addBFloat16s(sum, values []byte) {
	for at := 0; at < len(sum); at += 2 {
		store(sum[at:], ToBFloat16(load[BFloat16](sum[at:]).Float32()+load[BFloat16](values[at:]).Float32()))
	}
}
