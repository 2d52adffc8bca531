package codec

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"reflect"
	"time"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var errorType = reflect.TypeFor[error]()

// commonTypes lists the types that every Registry knows by the names that Go
// has for them.
func commonTypes() []reflect.Type {
	var types []reflect.Type
	for _, t := range []reflect.Type{
		reflect.TypeFor[bool](), reflect.TypeFor[string](),
		reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[int16](), reflect.TypeFor[int32](), reflect.TypeFor[int64](),
		reflect.TypeFor[uint](), reflect.TypeFor[uint8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint32](), reflect.TypeFor[uint64](),
		reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[complex64](), reflect.TypeFor[complex128](),
		reflect.TypeFor[time.Time](), reflect.TypeFor[time.Duration](),
		reflect.TypeFor[*tensor.Tensor](), reflect.TypeFor[*tensor.Sparse](), reflect.TypeFor[any](), errorType,
	} {
		types = append(types, reflect.SliceOf(t), reflect.MapOf(reflect.TypeFor[string](), t))
		if t != reflect.TypeFor[any]() {
			types = append(types, t)
		}
	}
	return append(types, reflect.TypeFor[map[any]any](), reflect.TypeFor[fs.PathError](), reflect.TypeFor[os.SyscallError](), reflect.TypeFor[net.AddrError]())
}

// commonErrors lists the errors that every Registry knows.
func commonErrors() map[string]error {
	return map[string]error{
		"context.Canceled":         context.Canceled,
		"context.DeadlineExceeded": context.DeadlineExceeded,
		"errors.ErrUnsupported":    errors.ErrUnsupported,
		"fs.ErrClosed":             fs.ErrClosed,
		"fs.ErrExist":              fs.ErrExist,
		"fs.ErrInvalid":            fs.ErrInvalid,
		"fs.ErrNotExist":           fs.ErrNotExist,
		"fs.ErrPermission":         fs.ErrPermission,
		"io.EOF":                   io.EOF,
		"io.ErrClosedPipe":         io.ErrClosedPipe,
		"io.ErrNoProgress":         io.ErrNoProgress,
		"io.ErrShortBuffer":        io.ErrShortBuffer,
		"io.ErrShortWrite":         io.ErrShortWrite,
		"io.ErrUnexpectedEOF":      io.ErrUnexpectedEOF,
		"net.ErrClosed":            net.ErrClosed,
		"os.ErrDeadlineExceeded":   os.ErrDeadlineExceeded,
		"os.ErrProcessDone":        os.ErrProcessDone,
		"tensor.ErrNotContiguous":  tensor.ErrNotContiguous,
		"tensor.ErrOverlap":        tensor.ErrOverlap,
		"tensor.ErrReadOnly":       tensor.ErrReadOnly,
		"tensor.ErrReleased":       tensor.ErrReleased,
		"tensor.ErrUnaligned":      tensor.ErrUnaligned,
	}
}
