package codec

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type shape interface{ Area() int }

type square struct{ Side int }

func (s square) Area() int { return s.Side * s.Side }

type rect struct{ W, H int }

func (r *rect) Area() int { return r.W * r.H }

func TestInterfaces(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, r.Register("square", square{}))
	require.NoError(t, r.Register("rect", (*rect)(nil)))
	was := []shape{square{2}, &square{3}, &rect{2, 3}, nil, square{4}, (*rect)(nil)}
	got := roundTrip(t, r, was)
	require.Equal(t, was, got)
	require.Equal(t, 6, got[2].Area())

	anything := []any{
		nil, 1, "a", []byte{1}, time.Minute, time.Unix(0, 5).UTC(), []any{1.5, map[string]any{"x": uint8(1)}},
		square{1}, &square{2}, rect{1, 2}, (*int)(nil), map[any]any{1: "a", square{3}: nil}, []string(nil), error(nil), 1i,
	}
	require.Equal(t, anything, roundTrip(t, r, anything))

	type unknown struct{ A int }
	err := encodeError(t, r, &[]any{1, &unknown{}})
	require.ErrorIs(t, err, ErrType)
	require.ErrorContains(t, err, "[]interface {}[1].(*codec.unknown)")
}

func TestInterfacesOfOtherTypes(t *testing.T) {
	sender, receiver := NewRegistry(), NewRegistry()
	require.NoError(t, sender.Register("square", square{}))
	data, _ := encode(t, sender, ptr(shape(square{2})))
	require.ErrorIs(t, decode(t, receiver, new(shape), data, nil), ErrType)

	require.NoError(t, receiver.Register("square", struct{ Side int }{}))
	err := decode(t, receiver, new(shape), data, nil)
	var mismatch *TypeError
	require.ErrorAs(t, err, &mismatch)
	require.Equal(t, TypeError{Wire: "struct { Side int }", Go: "codec.shape"}, *mismatch)

	var got any
	require.NoError(t, decode(t, receiver, &got, data, nil))
	require.Equal(t, struct{ Side int }{2}, got)
}

// TestUnhashableKey checks that a map with a slice as its key is rejected with ErrCorrupt. No Go
// sender can have such a map, so the test writes the message itself.
func TestUnhashableKey(t *testing.T) {
	r := NewRegistry()
	type fakeKey struct{ K, V any }
	e := NewEncoder(r, Limits{})
	e.Reset(nil)
	p, err := r.plan(reflect.TypeFor[map[any]any]())
	require.NoError(t, err)
	e.WriteUint(uint64(e.typeIndex(typeKey{p.typ, false}, p, "", false)))
	e.WriteUint(2)
	kv, err := r.plan(reflect.TypeFor[fakeKey]())
	require.NoError(t, err)
	require.NoError(t, kv.encodeStruct(e, reflect.ValueOf(&fakeKey{K: []any{1}}).UnsafePointer()))
	data, _, err := e.Finish()
	require.NoError(t, err)
	err = decode(t, r, new(map[any]any), data, nil)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "cannot be compared")
}

func TestRegister(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, r.Register("square", square{}))
	require.NoError(t, r.Register("square", &square{}), "registered again")
	require.ErrorIs(t, r.Register("square", rect{}), ErrRegistered)
	require.ErrorIs(t, r.Register("other", square{}), ErrRegistered)
	require.ErrorIs(t, r.Register("int", square{}), ErrRegistered)
	require.ErrorIs(t, r.Register("", rect{}), ErrUnsupported)
	require.ErrorIs(t, r.Register("nil", nil), ErrUnsupported)
}
