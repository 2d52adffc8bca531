package codec

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// supplies allocates a storage for each part of the message and returns them. ok is false if the
// parts claim more than 64 KiB in all.
func supplies(d *Decoder) (storages []*tensor.Storage, ok bool) {
	remaining := 1 << 16
	for _, p := range d.Parts() {
		if p.Bytes > remaining {
			return nil, false
		}
		remaining -= p.Bytes
		s, err := tensor.Heap{}.Alloc(p.Bytes)
		if err != nil {
			return nil, false
		}
		storages = append(storages, s)
	}
	return storages, true
}

// FuzzDecode decodes arbitrary bytes to types that have all, some or none of the fields. Decode
// must return a documented error, or a value that can be encoded and decoded again.
func FuzzDecode(f *testing.F) {
	r := NewRegistry()
	data, _ := sample(f, r)
	f.Add(data)
	require.NoError(f, r.Register("node", node{}))
	shared := &node{Name: "x"}
	for _, ptr := range []any{
		&node{Name: "a", Next: shared, More: []*node{shared}, Any: shared, Map: map[string]*node{"k": shared}},
		ptr(any(&old{Name: "n", Map: map[string]*part1{}})), ptr(any(arange(f, 2, 3))), ptr(any([]any{1, "a", errMine})), &old{}, &young{},
	} {
		if boxed, ok := ptr.(*any); ok && reflect.TypeOf(*boxed) == reflect.TypeFor[*old]() {
			require.NoError(f, r.Register("old", old{}))
		}
		data, _ := encode(f, r, ptr)
		f.Add(data)
	}
	targets := []reflect.Type{
		reflect.TypeFor[everything](), reflect.TypeFor[old](), reflect.TypeFor[young](), reflect.TypeFor[part1](),
		reflect.TypeFor[any](), reflect.TypeFor[node](), reflect.TypeFor[error](), reflect.TypeFor[*tensor.Sparse](),
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := NewDecoder(r, Limits{MaxElements: 1 << 16, ExpandedBytes: 1 << 20})
		for _, typ := range targets {
			if err := d.Reset(data); err != nil {
				require.True(t, known(err), err)
				return
			}
			storages, ok := supplies(d)
			if !ok || d.Supply(storages) != nil {
				return
			}
			to := reflect.New(typ)
			err := d.Decode(to.Interface())
			if err == nil {
				err = d.Finish()
			}
			if err != nil {
				require.True(t, known(err), err)
				continue
			}
			again, tensors := encode(t, r, to.Interface())
			require.NoError(t, decode(t, r, reflect.New(typ).Interface(), again, tensors))
		}
	})
}

// FuzzSchema decodes arbitrary schemas. readSchema must return a documented error, or a schema that
// has the same width and height after it was encoded and decoded again.
func FuzzSchema(f *testing.F) {
	r := NewRegistry()
	for _, t := range []reflect.Type{reflect.TypeFor[everything](), reflect.TypeFor[young](), reflect.TypeFor[[3][]*node]()} {
		p, err := r.plan(t)
		require.NoError(f, err)
		text, _ := p.encoded()
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		remaining := 1 << 22
		s, err := readSchema(text, func(n int) error {
			if remaining -= n; remaining < 0 {
				return errorf(ErrLimit, "memory")
			}
			return nil
		})
		if err != nil {
			require.True(t, known(err), err)
			return
		}
		require.LessOrEqual(t, len(s.String()), 32*len(text), "it ends")
		again, _ := s.encoded()
		same, err := readSchema(again, func(int) error { return nil })
		require.NoError(t, err)
		require.Equal(t, s.width, same.width)
		require.Equal(t, s.height, same.height)
	})
}
