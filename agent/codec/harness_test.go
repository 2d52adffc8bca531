package codec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// encode encodes the value that ptr points to as a message of its own, and returns its bytes and
// tensors. It fails the test if there is an error.
func encode(t testing.TB, r *Registry, ptr any) ([]byte, []pipe.Tensor) {
	t.Helper()
	e := NewEncoder(r, Limits{})
	e.Reset(nil)
	require.NoError(t, e.Encode(ptr))
	data, tensors, err := e.Finish()
	require.NoError(t, err)
	return data, tensors
}

// copyStorages returns a new storage for each tensor, with a copy of its memory, as a pipe delivers
// it.
func copyStorages(t testing.TB, tensors []pipe.Tensor) []*tensor.Storage {
	t.Helper()
	storages := make([]*tensor.Storage, len(tensors))
	for i, part := range tensors {
		s, err := tensor.Heap{}.Alloc(part.Buffer.Len())
		require.NoError(t, err)
		to, err := s.Bytes()
		require.NoError(t, err)
		from, ok := part.Buffer.Contiguous()
		require.True(t, ok)
		copy(to, from)
		storages[i] = s
	}
	return storages
}

// decode decodes data, a message of one value, into the variable that ptr points to, with copies of
// the tensors' memory. It returns the error of Reset, Decode or Finish.
func decode(t testing.TB, r *Registry, ptr any, data []byte, tensors []pipe.Tensor) error {
	t.Helper()
	d := NewDecoder(r, Limits{})
	if err := d.Reset(data); err != nil {
		return err
	}
	require.NoError(t, d.Supply(copyStorages(t, tensors)))
	if err := d.Decode(ptr); err != nil {
		return err
	}
	return d.Finish()
}

// roundTrip encodes v, decodes it again, and returns the decoded value. It fails the test if there
// is an error.
func roundTrip[T any](t testing.TB, r *Registry, v T) T {
	t.Helper()
	data, tensors := encode(t, r, &v)
	var got T
	require.NoError(t, decode(t, r, &got, data, tensors))
	return got
}

// encodeError returns the error of Encode for the value that ptr points to. It fails the test if
// there is none, or if Finish does not return the same error.
func encodeError(t testing.TB, r *Registry, ptr any) error {
	t.Helper()
	e := NewEncoder(r, Limits{})
	e.Reset(nil)
	err := e.Encode(ptr)
	require.Error(t, err)
	_, _, again := e.Finish()
	require.Equal(t, err, again, "later calls return the same error")
	return err
}

// sent encodes the value that from points to, and decodes it to the variable that to points to,
// which may have another type. It returns the error of decoding.
func sent(t testing.TB, from, to any) error {
	t.Helper()
	r := NewRegistry()
	data, tensors := encode(t, r, from)
	return decode(t, r, to, data, tensors)
}
