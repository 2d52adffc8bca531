package codec

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

type (
	part1 struct {
		A int
		B string
	}
	part2 struct {
		B   string
		New []float64
		A   int
	}
	old struct {
		Name  string
		Part  part1
		Parts []part1
		Map   map[string]*part1
		Tree  *old
		Gone  int
	}
	young struct {
		Tree  *young
		Added struct{ X, Y any }
		Map   map[string]*part2
		Parts []part2
		Part  part2
		Name  string
	}
)

func TestTwoVersions(t *testing.T) {
	p := &part1{5, "five"}
	was := old{
		Name: "n", Part: part1{1, "one"}, Parts: []part1{{2, "two"}, {3, "three"}}, Map: map[string]*part1{"a": p},
		Tree: &old{Name: "inner", Map: map[string]*part1{"b": p}, Gone: 3}, Gone: 7,
	}
	got := young{Name: "before", Part: part2{New: []float64{1}}, Added: struct{ X, Y any }{1, 2}}
	require.NoError(t, sent(t, &was, &got))
	require.Equal(t, young{
		Name: "n", Part: part2{A: 1, B: "one"}, Parts: []part2{{A: 2, B: "two"}, {A: 3, B: "three"}},
		Map:  map[string]*part2{"a": {A: 5, B: "five"}},
		Tree: &young{Name: "inner", Map: map[string]*part2{"b": {A: 5, B: "five"}}},
	}, got)
	require.Same(t, got.Map["a"], got.Tree.Map["b"])

	got.Added.X = []any{"new", got.Name, time.Unix(1, 2), io.EOF}
	got.Part.New = []float64{1, 2}
	var backReference old
	require.NoError(t, sent(t, &got, &backReference))
	was.Gone, was.Tree.Gone = 0, 0
	require.Equal(t, was, backReference)
}

// everything has a field of each kind. The receiver knows none of them.
type everything struct {
	Bool bool
	Ints struct {
		A int8
		B uint64
	}
	Floats struct {
		F float32
		D float64
		C complex64
		E complex128
	}
	Text    string
	Bytes   []byte
	Array   [3]byte
	Arrays  [2][2]string
	Times   []time.Time
	Nothing []struct{}
	Map     map[string][]int
	Ptr     *part1
	Ptrs    []*part1
	Any     any
	Anys    []any
	Err     error
	Errs    []error
	Tensor  *tensor.Tensor
	Sparse  *tensor.Sparse
	Own     secretive
	Binary  time.Month
	Deep    *everything
	Last    int
}

func fullOf(t testing.TB) everything {
	t.Helper()
	m := arange(t, 3)
	sparse, err := tensor.NewSparse(must(t)(tensor.FromSlice([]int64{1}, 1, 1)), arange(t, 1), 4)
	require.NoError(t, err)
	shared := &part1{1, "x"}
	full := everything{
		Bool: true, Text: "text", Bytes: []byte{1, 2}, Array: [3]byte{1}, Arrays: [2][2]string{{"a", "b"}, {"c"}},
		Times: []time.Time{time.Now(), {}}, Nothing: make([]struct{}, 5), Map: map[string][]int{"a": {1}, "b": nil},
		Ptr: shared, Ptrs: []*part1{shared, nil, {2, "y"}}, Any: part1{3, "z"}, Anys: []any{nil, 1, []any{"x"}, shared, io.EOF},
		Err: io.EOF, Errs: []error{nil, errMine, &codeError{1, errMine}}, Tensor: m, Sparse: sparse,
		Own: secretive{text: "own", t: m}, Last: 9,
	}
	full.Deep = &everything{Last: 8, Ptr: shared}
	return full
}

// sample registers the types of the test in r and returns a message with a value of type
// everything.
func sample(t testing.TB, r *Registry) ([]byte, []pipe.Tensor) {
	t.Helper()
	require.NoError(t, r.Register("part1", part1{}))
	require.NoError(t, r.Register("codeError", codeError{}))
	full := fullOf(t)
	return encode(t, r, &full)
}

func TestSkipping(t *testing.T) {
	full := fullOf(t)
	r := NewRegistry()
	require.NoError(t, r.Register("part1", part1{}))
	require.NoError(t, r.Register("codeError", codeError{}))
	for _, was := range []everything{full, {}} {
		data, tensors := encode(t, r, &was)
		var got struct {
			Last, More int
			Any        any
		}
		receiver := NewRegistry()
		require.NoError(t, receiver.Register("part1", part1{}))
		require.NoError(t, decode(t, receiver, &got, data, tensors), "the other types are unknown")
		require.Equal(t, was.Last, got.Last)
		for n := range data {
			require.Error(t, decode(t, r, &got, data[:n], nil))
		}
	}
}

// TestSharedWithSkipped checks that if a pointer's value was in a field that the receiver skips,
// later pointers to the value are still decoded to it. If it was in a custom encoding that was
// skipped, decoding fails with ErrType.
func TestSharedWithSkipped(t *testing.T) {
	type chain struct {
		N    int
		Next *chain
	}
	type was struct {
		Skipped struct{ All []*chain }
		First   *chain
		Second  *chain
	}
	type now struct {
		Second *chain
		First  *chain
		Third  *chain
	}
	a := &chain{1, &chain{2, &chain{3, nil}}}
	var got now
	require.NoError(t, sent(t, &was{struct{ All []*chain }{[]*chain{a, a.Next}}, a.Next, a}, &got))
	require.Equal(t, now{First: a.Next, Second: a}, got)
	require.Same(t, got.First, got.Second.Next)

	type hidden struct {
		Own   secretive
		Child *secretive
		Other *chain
	}
	type seen struct {
		Child *secretive
		Other *chain
	}
	child := &secretive{text: "x"}
	var s seen
	require.NoError(t, sent(t, &hidden{secretive{child: child}, nil, a}, &s))
	require.Equal(t, a, s.Other)
	err := sent(t, &hidden{secretive{child: child}, child, nil}, &s)
	require.ErrorIs(t, err, ErrType)
	require.ErrorContains(t, err, "in a custom encoding that was skipped")
}

func TestTypeMismatch(t *testing.T) {
	type wrong struct {
		Name  string
		Parts []struct{ A string }
	}
	err := sent(t, &old{}, &wrong{})
	require.EqualError(t, err, "codec: codec.wrong.Parts[].A: type does not fit: the message has int, want string")
	var mismatch *TypeError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, TypeError{"int", "string"}, *mismatch)
	for _, c := range []struct{ from, to any }{
		{new(int), new(uint)},
		{new(float32), new(float64)},
		{new(int), new(*int)},
		{new([]int), new([2]int)},
		{new([3]int), new([2]int)},
		{new([2]uint16), new([2]byte)},
		{new(map[string]int), new(map[string]string)},
		{new(map[string]int), new(map[int]int)},
		{new([]byte), new(string)},
		{new(any), new(int)},
		{new(int), new(any)},
		{new(error), new(any)},
		{new(*tensor.Tensor), new(*tensor.Sparse)},
		{new(secretive), new(part1)},
		{new(struct {
			A chan int `tensorpipe:"-"`
		}), new(int)},
	} {
		err := sent(t, c.from, c.to)
		require.ErrorIs(t, err, ErrType, "%T to %T", c.from, c.to)
		require.ErrorAs(t, err, &mismatch)
		require.NotEmpty(t, mismatch.Go)
	}
}

func TestNumberOverflow(t *testing.T) {
	var small int8
	require.NoError(t, sent(t, ptr(int64(-128)), &small))
	require.Equal(t, int8(-128), small)
	require.ErrorIs(t, sent(t, ptr(128), &small), ErrType)
	require.ErrorIs(t, sent(t, ptr(uint64(256)), new(uint8)), ErrType)
	require.ErrorContains(t, sent(t, &struct{ A int64 }{1 << 40}, &struct{ A int32 }{}), ".A: type does not fit: the number 1099511627776 does not fit in int32")
}

// TestHookInTwoVersions checks that a pointer that a hook encodes is decoded also if the receiver's
// struct has other fields than the sender's, and if its first occurrence is in a skipped field.
func TestHookInTwoVersions(t *testing.T) {
	known := map[int]*ref{1: {id: 1}}
	r := withHooks(t, known)
	type was struct {
		Skipped, Kept *ref
		Bytes         [4]byte
	}
	type now struct {
		Bytes [4]byte
		Kept  *ref
		Again *ref
	}
	data, _ := encode(t, r, &was{Kept: known[1], Bytes: [4]byte{1, 2}})
	var got now
	require.NoError(t, decode(t, r, &got, data, nil))
	require.Equal(t, now{Bytes: [4]byte{1, 2}, Kept: known[1]}, got)

	data, _ = encode(t, r, &was{Skipped: known[1], Kept: known[1]})
	require.NoError(t, decode(t, r, &got, data, nil))
	require.Same(t, known[1], got.Kept)
}

// TestSchemaThatFailed checks that a description of a type that cannot be decoded fails again when
// the type is used again.
func TestSchemaThatFailed(t *testing.T) {
	d := NewDecoder(NewRegistry(), Limits{})
	data, _ := encode(t, NewRegistry(), new(int))
	require.NoError(t, d.Reset(data))
	entry := typeEntry{text: []byte{byte(kindInt), 0}} // a byte follows the type
	for range 2 {
		s, err := d.schemaOf(&entry)
		require.ErrorIs(t, err, ErrCorrupt)
		require.Nil(t, s)
	}
}
