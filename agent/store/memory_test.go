package store

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWaitEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Limits{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		err := m.Wait(ctx, "key")
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, `store: wait "key": context deadline exceeded`)
		require.Equal(t, time.Minute, time.Since(begin))
	})
}

// TestCancelledWaitsAreRemoved tests that cancelled calls of Wait and closed Watchers leave no
// entry in the table.
func TestCancelledWaitsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Limits{})
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			go m.Wait(ctx, "key")
		}
		synctest.Wait()
		require.Equal(t, 3, m.table.waiters["key"].waiting)
		cancel()
		synctest.Wait()
		require.Empty(t, m.table.waiters)

		w, err := m.Watch(t.Context(), "key")
		require.NoError(t, err)
		require.Len(t, m.table.subscriptions, 1)
		require.NoError(t, w.Close())
		require.Empty(t, m.table.subscriptions)
	})
}

func TestMemoryLimits(t *testing.T) {
	ctx := t.Context()
	m := NewMemory(Limits{KeyBytes: 4, ValueBytes: 8, MaxKeys: 3, TotalBytes: 20})
	require.ErrorIs(t, m.Set(ctx, "12345", nil), ErrLimit)
	require.ErrorIs(t, m.Set(ctx, "a", make([]byte, 9)), ErrLimit)

	require.NoError(t, m.Set(ctx, "a", make([]byte, 8)))
	require.NoError(t, m.Set(ctx, "b", make([]byte, 8)))
	require.ErrorIs(t, m.Set(ctx, "c", make([]byte, 2)), ErrLimit)
	require.NoError(t, m.Set(ctx, "c", nil))
	require.NoError(t, m.Set(ctx, "a", make([]byte, 7)))
	require.ErrorIs(t, m.Set(ctx, "d", nil), ErrLimit, "three keys")
	n, err := m.Add(ctx, "d", 1)
	require.ErrorIs(t, err, ErrLimit)
	require.Zero(t, n)
	now, err := m.CompareAndSet(ctx, "d", nil, nil)
	require.ErrorIs(t, err, ErrLimit)
	require.Nil(t, now)
	now, err = m.CompareAndSet(ctx, "a", make([]byte, 7), make([]byte, 9))
	require.ErrorIs(t, err, ErrLimit)
	require.Nil(t, now, "neither the value that is too large nor the one that stays")

	existed, err := m.Delete(ctx, "b")
	require.NoError(t, err)
	require.True(t, existed)
	require.NoError(t, m.Set(ctx, "d", make([]byte, 8)))
	require.Equal(t, len("acd")+7+8, m.table.bytes)
}

// TestUpdatesMerge tests that receive returns several updates as one, with the old value of the
// first and the new value of the last, and only once.
func TestUpdatesMerge(t *testing.T) {
	s := newSubscription()
	s.push(update{old: []byte("0"), existed: true, now: []byte("1"), exists: true})
	s.push(update{old: []byte("1"), existed: true})
	s.push(update{now: []byte("2"), exists: true})
	u, ok, err := s.receive()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, update{old: []byte("0"), existed: true, now: []byte("2"), exists: true}, u)
	_, ok, err = s.receive()
	require.NoError(t, err)
	require.False(t, ok)
}
