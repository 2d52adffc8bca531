package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// A request may be enlisted by one goroutine when another has seen to the cancel that
// came behind it.
func TestCancelOvertakes(t *testing.T) {
	c := &conn{agent: &Agent{}, serving: map[uint64]*Request{}}
	enlisted := func(id uint64) *Request {
		r := &Request{conn: c, id: id}
		r.base, r.ctx = t.Context(), r
		require.NoError(t, c.enlist(r))
		return r
	}
	enough := errors.New("enough")
	c.early.add(7, enough)
	require.NoError(t, enlisted(6).Err())
	r := enlisted(7)
	require.ErrorIs(t, r.Err(), context.Canceled)
	require.Equal(t, enough, context.Cause(r))
}

// Only the last ones are remembered.
func TestEarlyCancelsAreBounded(t *testing.T) {
	var e earlyCancels
	enough := errors.New("enough")
	for id := range uint64(100) {
		e.add(id+1, enough)
	}
	require.NoError(t, e.take(1))
	require.Equal(t, enough, e.take(100))
	require.NoError(t, e.take(100))
	require.NoError(t, e.take(0))
}
