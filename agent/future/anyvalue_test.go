package future_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

func TestOnValue(t *testing.T) {
	type outcome struct {
		ptr any
		err error
	}
	got := make(chan outcome, 1)
	watch := func(ptr any, err error) { got <- outcome{ptr, err} }

	f := future.New[error]()
	require.NoError(t, future.OnValue(f, watch))
	require.NoError(t, f.Set(nil))
	require.Equal(t, outcome{new(error), nil}, <-got, "the type is known although the value is nil")

	failure := errors.New("failed")
	require.NoError(t, future.OnValue(future.Failed[int](failure), watch))
	require.Equal(t, outcome{new(int), failure}, <-got)

	require.ErrorIs(t, future.OnValue(f, nil), future.ErrNilCallback)
	require.ErrorIs(t, future.OnValue(nil, watch), future.ErrNilFuture)
	require.ErrorIs(t, future.OnValue((*future.Future[int])(nil), watch), future.ErrNilFuture)
}
