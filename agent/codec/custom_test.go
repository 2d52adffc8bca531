package codec

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// secretive has unexported fields and a custom encoding.
type secretive struct {
	text  string
	n     int64
	raw   []byte
	yes   bool
	f     float64
	t     *tensor.Tensor
	child *secretive
	u     uint64
}

func (s *secretive) AppendTensorpipe(e *Encoder) error {
	e.WriteString(s.text)
	e.WriteInt(s.n)
	e.WriteBytes(s.raw)
	e.WriteBool(s.yes)
	e.WriteFloat64(s.f)
	e.WriteUint(s.u)
	if err := e.WriteTensor(s.t); err != nil {
		return err
	}
	return e.Encode(&s.child)
}

func (s *secretive) ParseTensorpipe(d *Decoder) error {
	var all [7]error
	s.text, all[0] = d.ReadString()
	s.n, all[1] = d.ReadInt()
	s.raw, all[2] = d.ReadBytes()
	s.yes, all[3] = d.ReadBool()
	s.f, all[4] = d.ReadFloat64()
	s.u, all[5] = d.ReadUint()
	s.t, all[6] = d.ReadTensor()
	if err := errors.Join(all[:]...); err != nil {
		return err
	}
	return d.Decode(&s.child)
}

func TestCustomEncoding(t *testing.T) {
	m := arange(t, 3)
	leaf := &secretive{text: "leaf", raw: []byte{}, t: m}
	was := []secretive{
		{text: "x", n: -5, raw: []byte{1}, yes: true, f: 1.5, u: 300, t: m, child: leaf},
		{raw: []byte{}, child: leaf},
	}
	r := NewRegistry()
	data, tensors := encode(t, r, &was)
	require.Len(t, tensors, 1)
	var got []secretive
	require.NoError(t, decode(t, r, &got, data, tensors))
	require.Same(t, got[0].child, got[1].child)
	require.Same(t, got[0].t, got[0].child.t)
	requireSame(t, m, got[0].t)
	for n := range data {
		require.Error(t, decode(t, r, &got, data[:n], tensors))
	}

	leaf.child = leaf
	err := encodeError(t, r, &was)
	require.ErrorIs(t, err, ErrCycle)
	require.ErrorContains(t, err, "[]codec.secretive[0].(*codec.secretive).(*codec.secretive)")
}

type half struct{ n int }

func (half) AppendTensorpipe(*Encoder) error { return nil }

func TestIncompleteCustomEncoding(t *testing.T) {
	require.ErrorContains(t, encodeError(t, NewRegistry(), &half{n: 1}), "but not the other")
}

type (
	ref      struct{ id int }
	variable struct {
		t     *tensor.Tensor
		grads bool
	}
	countKey struct{}
)

var errGrad = errors.New("requires grad; detach it")

// withHooks returns a new Registry with hooks for *ref and variable. A *ref is encoded as its id
// and decoded as known[id], and a header counts the encoded ones; encoding a variable fails if its
// field grads is set.
func withHooks(t *testing.T, known map[int]*ref) *Registry {
	t.Helper()
	r := NewRegistry()
	require.NoError(t, Hook(r, "ref", func(e *Encoder, v **ref) error {
		n, _ := e.State(countKey{}).(int)
		e.SetState(countKey{}, n+1)
		e.SetHeader("refs", []byte{byte(n + 1)})
		e.WriteUint(uint64((*v).id))
		return nil
	}, func(d *Decoder, v **ref) error {
		id, err := d.ReadUint()
		*v = known[int(id)]
		n, _ := d.State(countKey{}).(int)
		d.SetState(countKey{}, n+1)
		return err
	}))
	require.NoError(t, Hook(r, "variable", func(e *Encoder, v *variable) error {
		if v.grads {
			return errGrad
		}
		return e.WriteTensor(v.t)
	}, func(d *Decoder, v *variable) (err error) {
		v.t, err = d.ReadTensor()
		return err
	}))
	return r
}

func TestHooks(t *testing.T) {
	known := map[int]*ref{1: {id: 1}, 2: {id: 2}}
	r := withHooks(t, known)
	one, two := &ref{1}, &ref{2}
	was := []any{one, map[string]*ref{"a": two, "b": two}, []*ref{one, nil}, variable{t: arange(t, 2)}}
	require.NoError(t, r.Register("refs", map[string]*ref{}))
	require.NoError(t, r.Register("list", []*ref{}))
	data, tensors := encode(t, r, &was)

	d := NewDecoder(r, Limits{})
	require.NoError(t, d.Reset(data))
	count, ok := d.Header("refs")
	require.True(t, ok, "known before the values are decoded")
	require.Equal(t, []byte{2}, count, "each pointer is encoded once")
	_, ok = d.Header("other")
	require.False(t, ok)

	require.NoError(t, d.Supply(copyStorages(t, tensors)))
	var got []any
	require.NoError(t, d.Decode(&got))
	require.NoError(t, d.Finish())
	require.Equal(t, 2, d.State(countKey{}))
	require.Same(t, known[1], got[0])
	require.Same(t, known[2], got[1].(map[string]*ref)["b"])
	require.Same(t, known[1], got[2].([]*ref)[0])
	require.Nil(t, got[2].([]*ref)[1])
	requireSame(t, was[3].(variable).t, got[3].(variable).t)

	require.NoError(t, d.Reset(data))
	require.Nil(t, d.State(countKey{}), "the state belonged to another message")
}

func TestHookRefuses(t *testing.T) {
	r := withHooks(t, nil)
	type args struct{ Layers []variable }
	err := encodeError(t, r, &args{[]variable{{}, {grads: true}}})
	require.ErrorIs(t, err, errGrad)
	require.EqualError(t, err, "codec: codec.args.Layers[1]: requires grad; detach it")

	data, _ := encode(t, r, &[]*ref{{5}})
	err = decode(t, r, new([]*ref), data, nil)
	require.ErrorIs(t, err, ErrType)
	require.ErrorContains(t, err, `[0]: type does not fit: the hook "ref" made no value`)
}

// TestHookReadsTooMuchOrLittle checks that decoding fails with ErrCorrupt if a hook reads fewer or
// more items than were written for it.
func TestHookReadsTooMuchOrLittle(t *testing.T) {
	for _, reads := range []int{0, 1, 3} {
		r := NewRegistry()
		require.NoError(t, Hook(r, "two", func(e *Encoder, _ *half) error {
			e.WriteUint(1)
			e.WriteUint(2)
			return nil
		}, func(d *Decoder, _ *half) (err error) {
			for range reads {
				_, err = d.ReadUint()
			}
			return err
		}))
		data, _ := encode(t, r, &[2]half{})
		require.ErrorIs(t, decode(t, r, new([2]half), data, nil), ErrCorrupt)
	}
}

// TestHookSwallowsError checks that if a hook ignores an error of Encoder.Encode, the outer Encode
// still returns the error.
func TestHookSwallowsError(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, Hook(r, "half", func(e *Encoder, _ *half) error {
		_ = e.Encode(new(chan int))
		return nil
	}, func(d *Decoder, _ *half) error { return nil }))
	require.ErrorIs(t, encodeError(t, r, new(half)), ErrUnsupported)
}

func TestHookErrors(t *testing.T) {
	r := NewRegistry()
	encode := func(*Encoder, *ref) error { return nil }
	decode := func(*Decoder, *ref) error { return nil }
	require.ErrorIs(t, Hook(r, "", encode, decode), ErrUnsupported)
	require.ErrorIs(t, Hook(r, "ref", nil, decode), ErrUnsupported)
	require.ErrorIs(t, Hook(r, "ref", encode, nil), ErrUnsupported)
	require.ErrorIs(t, Hook(r, "fmt", func(*Encoder, *fmt.Stringer) error { return nil }, func(*Decoder, *fmt.Stringer) error { return nil }), ErrUnsupported)
	require.ErrorIs(t, Hook(r, "int", encode, decode), ErrRegistered)
	require.NoError(t, r.Register("ref", ref{}))
	require.NoError(t, Hook(r, "ref", encode, decode))
	require.ErrorIs(t, Hook(r, "ref", encode, decode), ErrRegistered)
	require.ErrorIs(t, Hook(r, "again", encode, decode), ErrRegistered)
}

// TestHookRegisteredAfterUse checks that a hook that is registered after values of its type were
// encoded applies to the next message.
func TestHookRegisteredAfterUse(t *testing.T) {
	r := NewRegistry()
	type plain struct{ N int }
	require.Equal(t, plain{7}, roundTrip(t, r, plain{7}))
	require.NoError(t, Hook(r, "plain", func(*Encoder, *plain) error { return errGrad }, func(*Decoder, *plain) error { return nil }))
	require.ErrorIs(t, encodeError(t, r, &[]plain{{7}}), errGrad)
}

// TestHookForByte checks that a hook for a type based on byte applies also to the elements of
// slices and arrays of that type.
func TestHookForByte(t *testing.T) {
	type letter byte
	r := NewRegistry()
	require.NoError(t, Hook(r, "letter", func(e *Encoder, v *letter) error {
		e.WriteString(string(rune(*v)))
		return nil
	}, func(d *Decoder, v *letter) error {
		s, err := d.ReadString()
		if err == nil {
			*v = letter(s[0])
		}
		return err
	}))
	require.Equal(t, []letter("abc"), roundTrip(t, r, []letter("abc")))
	require.Equal(t, [2]letter{'a', 'b'}, roundTrip(t, r, [2]letter{'a', 'b'}))
	p, err := r.plan(reflect.TypeFor[[]letter]())
	require.NoError(t, err)
	require.Equal(t, "[]letter", p.schema.String())
}

type failing struct{ N int }

func (failing) MarshalBinary() ([]byte, error)  { return []byte("x"), nil }
func (*failing) UnmarshalBinary(p []byte) error { return errGrad }

func TestBinaryErrors(t *testing.T) {
	data, _ := encode(t, NewRegistry(), &[]failing{{1}})
	err := decode(t, NewRegistry(), new([]failing), data, nil)
	require.ErrorIs(t, err, errGrad)
	require.ErrorContains(t, err, "[]codec.failing[0]: ")
}

func TestHeaders(t *testing.T) {
	r := NewRegistry()
	e := NewEncoder(r, Limits{})
	e.Reset(nil)
	e.SetHeader("a", []byte("1"))
	e.SetHeader("b", nil)
	e.SetHeader("a", []byte("2"))
	data, _, err := e.Finish()
	require.NoError(t, err)
	d := NewDecoder(r, Limits{})
	require.NoError(t, d.Reset(data))
	a, ok := d.Header("a")
	require.True(t, ok)
	require.Equal(t, "2", string(a))
	b, ok := d.Header("b")
	require.True(t, ok)
	require.Empty(t, b)
	require.NoError(t, d.Finish())

	e.Reset(nil)
	for i := range maxHeaders + 1 {
		e.SetHeader(fmt.Sprint(i), nil)
	}
	_, _, err = e.Finish()
	require.ErrorIs(t, err, ErrLimit)
}

func TestState(t *testing.T) {
	e := NewEncoder(NewRegistry(), Limits{})
	e.Reset(nil)
	require.Nil(t, e.State(countKey{}))
	e.SetState(countKey{}, 1)
	e.SetState("other", 2)
	e.SetState(countKey{}, 3)
	require.Equal(t, 3, e.State(countKey{}))
	require.Equal(t, 2, e.State("other"))
	e.Reset(nil)
	require.Nil(t, e.State(countKey{}))
}

// TestFinished checks that after Finish, Encode and Finish of the Encoder fail until Reset. Decode
// fails before the first Reset of a Decoder.
func TestFinished(t *testing.T) {
	e := NewEncoder(NewRegistry(), Limits{})
	require.NoError(t, e.Encode(ptr(7)))
	_, _, err := e.Finish()
	require.NoError(t, err)
	_, _, err = e.Finish()
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorIs(t, e.Encode(ptr(7)), ErrUnsupported)
	e.Reset(nil)
	require.NoError(t, e.Encode(ptr(7)))

	d := NewDecoder(NewRegistry(), Limits{})
	require.ErrorIs(t, d.Decode(new(int)), ErrCorrupt, "there is no message yet")
}
