package codec

import (
	"errors"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReuse checks that an Encoder and a Decoder that are used for one message after the other,
// also after an error, encode the same bytes as new ones and decode without error. Forget clears
// the Decoder.
func TestReuse(t *testing.T) {
	r := nodes(t)
	long := make([]*int, 2*maxRetained)
	for i := range long {
		long[i] = new(int)
	}
	messages := []any{
		&long, ptr(arange(t, 3)), ptr(any(&node{Name: "x"})), ptr([]error{errMine}), &long, &node{Next: &node{}},
		new(chan int), // cannot be encoded
		ptr(7), &[]any{1, "a", arange(t, 2), arange(t, 2)},
	}
	e, d := NewEncoder(r, Limits{}), NewDecoder(r, Limits{})
	var buf []byte
	for _, ptr := range messages {
		e.Reset(buf[:0])
		if err := e.Encode(ptr); err != nil {
			require.ErrorIs(t, err, ErrUnsupported)
			require.ErrorIs(t, d.Decode(new(int)), ErrCorrupt, "the last message has no more values")
			continue
		}
		data, tensors, err := e.Finish()
		require.NoError(t, err)
		want, _ := encode(t, r, ptr)
		require.Equal(t, want, data)
		buf = data

		require.NoError(t, d.Reset(data))
		require.NoError(t, d.Supply(copyStorages(t, tensors)))
		got := reflect.New(reflect.TypeOf(ptr).Elem())
		require.NoError(t, d.Decode(got.Interface()))
		require.NoError(t, d.Finish())
		require.Len(t, d.Parts(), len(tensors))
	}
	d.Forget()
	require.Empty(t, d.Parts())
	require.ErrorIs(t, d.Decode(new(int)), ErrCorrupt)
}

// TestConcurrentUse checks that several goroutines encode and decode with one Registry while a type
// is being registered in it.
func TestConcurrentUse(t *testing.T) {
	r := NewRegistry()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			was := young{Name: "x", Map: map[string]*part2{"a": {A: i}}}
			if i == 3 {
				_ = r.Register("part2", part2{})
			}
			e, d := NewEncoder(r, Limits{}), NewDecoder(r, Limits{})
			var got young
			err := e.Encode(&was)
			data, _, err2 := e.Finish()
			if err = errors.Join(err, err2, d.Reset(data), d.Decode(&got)); err != nil || !reflect.DeepEqual(was, got) {
				t.Errorf("%v: %+v", err, got)
			}
		})
	}
	all.Wait()
}
