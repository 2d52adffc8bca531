package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrefixesAreSeparate(t *testing.T) {
	ctx := t.Context()
	m := NewMemory(Limits{})
	a, b := Prefix(m, "a"), Prefix(Prefix(m, "b"), "c")
	require.NoError(t, a.Set(ctx, "key", []byte("1")))
	_, err := b.Get(ctx, "key")
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualError(t, err, `store: get "key": no such key`)
	require.NoError(t, b.Set(ctx, "key", []byte("2")))
	for key, want := range map[string]string{"a/key": "1", "b/c/key": "2"} {
		value, err := m.Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, want, string(value))
	}

	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Set(ctx, "key", nil), ErrClosed)
	require.NoError(t, b.Set(ctx, "key", nil))
	require.NoError(t, m.Close())
	require.ErrorIs(t, b.Set(ctx, "key", nil), ErrClosed)
}

// TestPrefixReturnsCancellationOfTheCaller tests that a call through a Prefix with a cancelled
// context fails with context.Canceled, and not with ErrClosed.
func TestPrefixReturnsCancellationOfTheCaller(t *testing.T) {
	m := NewMemory(Limits{})
	defer m.Close()
	p := Prefix(m, "p")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := p.Wait(ctx, "key")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrClosed)
}
