package safetensors

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&FormatError{Reason: "the header is not UTF-8"}, "safetensors: the header is not UTF-8"},
		{&FormatError{Tensor: "w", Reason: "bad shape", Err: io.EOF}, `safetensors: tensor "w": bad shape: EOF`},
		{&DTypeError{Tensor: "w", DType: "U16", Reason: "is not supported"}, `safetensors: tensor "w": dtype "U16" is not supported`},
		{&NotFoundError{Tensor: "w"}, `safetensors: no tensor "w" in the file`},
		{&NameError{Name: "\xff", Reason: "is not UTF-8"}, `safetensors: "\xff" is not UTF-8`},
		{&LimitError{What: "tensors", Value: 2, Limit: 1}, "safetensors: 2 tensors, the limit is 1"},
	} {
		require.EqualError(t, c.err, c.want)
	}
	long := strings.Repeat("x", 1000)
	for _, err := range []error{&FormatError{Tensor: long}, &DTypeError{Tensor: long, DType: long}, &NotFoundError{Tensor: long}, &NameError{Name: long}} {
		require.Less(t, len(err.Error()), 250, "names of others do not flood a log")
	}
}
