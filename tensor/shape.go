package tensor

import (
	"fmt"
	"math"
	"math/bits"
)

// MaxRank is the largest number of dimensions of a tensor.
const MaxRank = 64

// mul multiplies two numbers that are not negative; ok is false if the product
// is no int.
func mul(a, b int) (product int, ok bool) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	return int(low), high == 0 && low <= math.MaxInt
}

// NumElements is the product of the dimensions, 1 for a scalar. The error is a
// *ShapeError if a dimension is negative, there are more than MaxRank, or the
// number does not fit an int, dimensions of zero left aside.
func NumElements(shape []int) (int, error) {
	if len(shape) > MaxRank {
		return 0, &ShapeError{Shape: shape[:MaxRank], Reason: fmt.Sprintf("begins a shape of %d dimensions; the limit is %d", len(shape), MaxRank)}
	}
	n, empty := 1, false
	for _, dim := range shape {
		if dim < 0 {
			return 0, &ShapeError{Shape: shape, Reason: "has a negative dimension"}
		}
		if dim == 0 {
			empty = true
			continue
		}
		var ok bool
		if n, ok = mul(n, dim); !ok {
			return 0, &ShapeError{Shape: shape, Reason: "has more elements than an int can count"}
		}
	}
	if empty {
		return 0, nil
	}
	return n, nil
}

// ByteSize is the number of bytes of a contiguous tensor. The error is that of
// NumElements, or a *DTypeError.
func ByteSize(dtype DType, shape []int) (int, error) {
	if !dtype.Valid() {
		return 0, &DTypeError{Name: dtype.String(), Reason: "is not an element type"}
	}
	n, err := NumElements(shape)
	if err != nil {
		return 0, err
	}
	size, ok := mul(n, dtype.Size())
	if !ok {
		return 0, &ShapeError{Shape: shape, Reason: "has more bytes of " + dtype.String() + " than an int can count"}
	}
	return size, nil
}

// rowMajor is the strides of a contiguous tensor of that valid shape.
func rowMajor(shape []int) []int {
	strides := make([]int, len(shape))
	fillRowMajor(strides, shape)
	return strides
}

func fillRowMajor(strides, shape []int) {
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
}

// checkStrided fails unless every element of the described tensor lies among
// the first limit elements of a storage.
func checkStrided(shape, strides []int, offset, limit int) error {
	n, err := NumElements(shape)
	if err != nil {
		return err
	}
	if len(strides) != len(shape) {
		return &ShapeError{Shape: shape, Reason: fmt.Sprintf("comes with %d strides", len(strides))}
	}
	last := offset
	for i, dim := range shape {
		if strides[i] < 0 {
			return &ShapeError{Shape: shape, Reason: fmt.Sprintf("comes with the negative stride %d", strides[i])}
		}
		reach, ok := mul(max(dim-1, 0), strides[i])
		if n > 0 && (!ok || last > math.MaxInt-reach) {
			return &ShapeError{Shape: shape, Reason: fmt.Sprintf("with strides %v reaches beyond any memory", strides)}
		}
		last += reach
	}
	if n == 0 {
		last = offset - 1
	}
	if offset < 0 || last >= limit {
		return &IndexError{What: "storage", Index: last, Len: limit}
	}
	return nil
}
