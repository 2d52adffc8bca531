package codec

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type node struct {
	Name string
	Next *node
	More []*node
	Any  any
	Map  map[string]*node
}

func nodes(t *testing.T) *Registry {
	t.Helper()
	r := NewRegistry()
	require.NoError(t, r.Register("node", node{}))
	return r
}

func TestSharedPointers(t *testing.T) {
	shared := &node{Name: "shared"}
	was := node{Next: shared, More: []*node{shared, nil, {Next: shared}}, Any: shared, Map: map[string]*node{"x": shared}}
	got := roundTrip(t, nodes(t), was)
	require.Equal(t, was, got)
	for _, same := range []any{got.More[0], got.More[2].Next, got.Any, got.Map["x"]} {
		require.Same(t, got.Next, same)
	}
}

func TestManySharedPointers(t *testing.T) {
	const n = 10 * linearMax
	was := make([]*int, 0, 2*n)
	for i := range n {
		was = append(was, &i)
	}
	was = append(was, was...)
	got := roundTrip(t, NewRegistry(), was)
	require.Equal(t, was, got)
	for i := range n {
		require.Same(t, got[i], got[n+i])
	}
}

func TestPointersAcrossValues(t *testing.T) {
	r := NewRegistry()
	e := NewEncoder(r, Limits{})
	e.Reset([]byte("front"))
	p := ptr(7)
	require.NoError(t, e.Encode(&p))
	require.NoError(t, e.Encode(ptr(any(p))))
	data, _, err := e.Finish()
	require.NoError(t, err)
	require.Equal(t, "front", string(data[:5]))

	d := NewDecoder(r, Limits{})
	require.NoError(t, d.Reset(data[5:]))
	var a *int
	var b any
	require.NoError(t, d.Decode(&a))
	require.NoError(t, d.Decode(&b))
	require.NoError(t, d.Finish())
	require.Equal(t, 7, *a)
	require.Same(t, a, b)
}

// TestPointersOfTwoTypes checks that pointers to a struct and to its first field, which have the
// same address, are decoded as pointers of their own types.
func TestPointersOfTwoTypes(t *testing.T) {
	type first struct{ A struct{ B int } }
	f := &first{}
	f.A.B = 7
	type both struct {
		Whole *first
		Part  *struct{ B int }
		Field *int
	}
	was := both{f, &f.A, &f.A.B}
	require.Equal(t, was, roundTrip(t, NewRegistry(), was))
}

func TestPointersToPointers(t *testing.T) {
	p := ptr(ptr(ptr(7)))
	require.Equal(t, p, roundTrip(t, NewRegistry(), p))
	var null **int
	require.Nil(t, roundTrip(t, NewRegistry(), null))
	require.Equal(t, ptr((*int)(nil)), roundTrip(t, NewRegistry(), ptr((*int)(nil))))
}

type (
	selfSlice []selfSlice
	selfMap   map[string]selfMap
)

func TestCycles(t *testing.T) {
	r := nodes(t)
	require.NoError(t, r.Register("selfMap", selfMap{}))
	loop := &node{}
	loop.More = []*node{{}, {Any: loop}}
	slice := selfSlice{nil}
	slice[0] = slice
	m := selfMap{}
	m["x"] = selfMap{"y": m}
	things := []any{1, nil}
	things[1] = things
	self := &node{}
	self.Map = map[string]*node{"a": self}
	for _, c := range []struct {
		ptr  any
		path string
	}{
		{&loop, "*codec.node.More[1].Any.(*codec.node)"},
		{&self, `*codec.node.Map["a"]`},
		{&slice, "codec.selfSlice[0][0][0]"},
		{&m, `codec.selfMap["x"]["y"]["x"]`},
		{&things, "[]interface {}[1].([]interface {})[1].([]interface {})"},
	} {
		err := encodeError(t, r, c.ptr)
		require.ErrorIs(t, err, ErrCycle)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.True(t, strings.HasPrefix(e.Path(), c.path), e.Path())
		require.Less(t, len(e.Path()), 1000)
	}
}

// TestNoCycles checks that a slice or map that occurs twice in a value is not reported as a cycle,
// however deep it is nested.
func TestNoCycles(t *testing.T) {
	deep := any([]any{1, map[string]any{}})
	for range 2 * cycleCheckDepth {
		deep = []any{deep, map[string]any{"x": 1}, []any{}}
	}
	both := []any{deep, deep}
	require.Equal(t, both, roundTrip(t, NewRegistry(), both))
}

func TestDepth(t *testing.T) {
	list := func(n int) *node {
		var head *node
		for range n {
			head = &node{Next: head}
		}
		return head
	}
	r := nodes(t)
	require.Equal(t, list(1000), roundTrip(t, r, list(1000)))
	err := encodeError(t, r, ptr(list(1001)))
	require.ErrorIs(t, err, ErrLimit)
	require.Less(t, len(err.Error()), 1000)
	require.ErrorContains(t, err, "(...)")

	data, _ := encode(t, r, ptr(list(100)))
	d := NewDecoder(r, Limits{MaxDepth: 99})
	require.NoError(t, d.Reset(data))
	require.ErrorIs(t, d.Decode(new(*node)), ErrLimit)
}
