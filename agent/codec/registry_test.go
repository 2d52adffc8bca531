package codec

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// local is implemented by types that are refused.
type local interface{ stays() }

type handle struct{ N int }

func (*handle) stays() {}

var errLocal = errors.New("it means nothing elsewhere")

func TestRefuse(t *testing.T) {
	type deep struct{ List []map[string]*handle }
	r := NewRegistry()
	require.NoError(t, r.Register("deep", deep{}))
	require.Equal(t, deep{}, roundTrip(t, r, deep{}), "before the refusal, to have a compiled plan")
	require.NoError(t, Refuse[local](r, errLocal))
	for _, c := range []struct {
		ptr  any
		path string
	}{
		{&deep{}, "codec.deep.List[][]"},
		{ptr(any(&deep{})), "interface {}.(*codec.deep).List[][]"},
		{ptr(&handle{}), "*codec.handle"},
		{&struct{ H handle }{}, "struct { H codec.handle }.H"},
		{ptr(any(&handle{})), "interface {}.(*codec.handle)"},
		{ptr([]any{1, &handle{}}), "[]interface {}[1].(*codec.handle)"},
	} {
		err := encodeError(t, r, c.ptr)
		require.ErrorIs(t, err, errLocal)
		require.ErrorIs(t, err, ErrUnsupported)
		var where *Error
		require.ErrorAs(t, err, &where)
		require.Equal(t, c.path, where.Path())
	}
	require.Equal(t, 5, roundTrip(t, r, any(5)))
}

func TestRefuseTwice(t *testing.T) {
	r := NewRegistry()
	require.NoError(t, Refuse[local](r, errLocal))
	require.NoError(t, Refuse[local](r, errLocal), "repeated")
	require.ErrorIs(t, Refuse[local](r, errMine), ErrRegistered)
	require.ErrorIs(t, Refuse[any](r, errLocal), ErrUnsupported)
	require.ErrorIs(t, Refuse[handle](r, errLocal), ErrUnsupported)
	require.ErrorIs(t, Refuse[interface{ other() }](r, nil), ErrUnsupported)
}
