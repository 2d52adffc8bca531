package tensor

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&DTypeError{Name: "f32", Reason: "is not the i64 of the Go type"}, `tensor: dtype "f32": is not the i64 of the Go type`},
		{&ShapeError{Shape: []int{2, -1}, Reason: "has a negative dimension"}, "tensor: shape [2 -1]: has a negative dimension"},
		{&IndexError{What: "dimension", Index: 3, Len: 2}, "tensor: dimension index 3 out of range [0, 2)"},
		{&DeviceError{Device: npu}, "tensor: memory on npu:1 is not addressable by the host; copy it first"},
		{&SizeError{Size: -1}, "tensor: cannot allocate -1 bytes"},
		{&SizeError{Size: 7, Err: errors.New("no memory")}, "tensor: cannot allocate 7 bytes: no memory"},
		{&LimitError{Size: 3, InUse: 2, Limit: 4}, "tensor: pool has 2 of 4 bytes in use, no room for 3 more"},
	} {
		require.EqualError(t, c.err, c.want)
	}
}
