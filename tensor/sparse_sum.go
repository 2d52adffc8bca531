package tensor

import (
	"cmp"
	"runtime"
	"slices"
)

// Coalesce lists each place once, in row-major order, with the sum of its
// values. Values are added in the order in which they are listed, each sum
// rounded to the dtype. A coalesced tensor is returned as it is. The error is a
// *DTypeError for bools at the same place, which have no sum.
func (s *Sparse) Coalesce() (*Sparse, error) {
	if s.coalesced {
		return s, nil
	}
	places, err := s.places()
	if err != nil {
		return nil, err
	}
	order := make([]int, len(places))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(places[a], places[b]) })
	groups := groupByPlace(order, places)
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

// groupByPlace cuts order, which is sorted by place, into the values of each
// place.
func groupByPlace(order, places []int) [][]int {
	var groups [][]int
	for start, end := 0, 0; start < len(order); start = end {
		for end < len(order) && places[order[end]] == places[order[start]] {
			end++
		}
		groups = append(groups, order[start:end])
	}
	return groups
}

// pickIndices copies the indices of the first value of each group.
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

// sumValues adds up the values of each group.
func (s *Sparse) sumValues(groups [][]int) (*Tensor, error) {
	packed, owner, err := s.values.packed()
	if err != nil {
		return nil, err
	}
	add, ok := adders[s.values.dtype]
	if !ok && len(groups) < s.Len() {
		return nil, &DTypeError{Name: s.values.dtype.String(), Reason: "cannot be summed, and a place is listed twice"}
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

// ToDense makes the tensor that s stands for, on the Go heap. A few values can
// stand for a huge tensor: bound the shape that a peer claims. The error is
// that of Coalesce, a *SizeError or a *DeviceError.
func (s *Sparse) ToDense() (*Tensor, error) {
	s, err := s.Coalesce()
	if err != nil {
		return nil, err
	}
	places, err := s.places()
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
	size := len(packed) / max(len(places), 1)
	for k, place := range places {
		copy(dense.storage.host[place*size:], packed[k*size:][:size])
	}
	runtime.KeepAlive(owner)
	return dense, nil
}

// adders says how to add packed elements to as many others, for each dtype
// that has a sum.
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

func addNumbers[T uint8 | int8 | int16 | int32 | int64 | float32 | float64 | complex64 | complex128](sum, values []byte) {
	size := DTypeOf[T]().Size()
	for at := 0; at < len(sum); at += size {
		store(sum[at:], load[T](sum[at:])+load[T](values[at:]))
	}
}

func addFloat16s(sum, values []byte) {
	for at := 0; at < len(sum); at += 2 {
		store(sum[at:], ToFloat16(load[Float16](sum[at:]).Float32()+load[Float16](values[at:]).Float32()))
	}
}

func addBFloat16s(sum, values []byte) {
	for at := 0; at < len(sum); at += 2 {
		store(sum[at:], ToBFloat16(load[BFloat16](sum[at:]).Float32()+load[BFloat16](values[at:]).Float32()))
	}
}
