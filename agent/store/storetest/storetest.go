// Package storetest is the conformance suite of package store: what the comments
// of store.Store promise, as tests that every store passes.
//
// A store runs it from one of its own tests:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Backend{New: func(t *testing.T) (a, b store.Store) { ... }})
//	}
//
// Nothing sleeps and nothing is timed. A call that stays blocked where it must not
// fails its test.
package storetest

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// Backend is the store under test.
type Backend struct {
	// New returns two handles on one empty store, as two workers would have
	// them, or the same one twice. It closes with the test what it opens.
	New func(t *testing.T) (a, b store.Store)

	// CompareAndSetWakesNobody says that Wait does not learn of a key that
	// CompareAndSet has made, as with PyTorch's own server. The test is left out.
	CompareAndSetWakesNobody bool

	// RefusesByClosing says that a server refuses what it cannot do by closing
	// the connection, so that the error is store.ErrDisconnected instead of the
	// reason.
	RefusesByClosing bool
}

// Run tests b.
func Run(t *testing.T, b Backend) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"Values", valueCases},
		{"Wait", waitCases},
		{"Add", addCases},
		{"CompareAndSet", compareCases},
		{"Watch", watchCases},
		{"Ends", endCases},
	} {
		for _, c := range group.cases {
			t.Run(group.name+"/"+c.name, func(t *testing.T) { c.run(t, b) })
		}
	}
}

type testCase struct {
	name string
	test func(f fixture)
}

// fixture is what a test works with.
type fixture struct {
	*testing.T
	backend Backend
	ctx     context.Context // ends when a test is late
	a, b    store.Store
}

func (c testCase) run(t *testing.T, b Backend) {
	ctx, cancel := context.WithTimeout(t.Context(), patience.Limit)
	defer cancel()
	f := fixture{T: t, backend: b, ctx: ctx}
	f.a, f.b = b.New(t)
	c.test(f)
}

// wants fails the test unless key has this value, seen through both handles.
func (f fixture) wants(key, value string) {
	f.Helper()
	for _, s := range []store.Store{f.a, f.b} {
		got, err := s.Get(f.ctx, key)
		require.NoError(f, err)
		require.Equal(f, value, string(got))
	}
}

// wantsNone fails the test if key exists.
func (f fixture) wantsNone(key string) {
	f.Helper()
	for _, s := range []store.Store{f.a, f.b} {
		got, err := s.Get(f.ctx, key)
		require.ErrorIs(f, err, store.ErrNotFound)
		require.Nil(f, got)
	}
}

func (f fixture) set(s store.Store, key, value string) {
	f.Helper()
	require.NoError(f, s.Set(f.ctx, key, []byte(value)))
}

// yield lets the other goroutines get to where they block. A test must hold
// without it too; it only makes the interesting order the likely one.
func yield() {
	for range 100 {
		runtime.Gosched()
	}
}
