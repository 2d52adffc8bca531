// Package storetest is the conformance suite of package store: tests of the contract
// in the comments of store.Store.
//
// An implementation runs it in one of its tests:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Backend{New: func(t *testing.T) (a, b store.Store) { ... }})
//	}
//
// No test sleeps or measures time. A call that blocks for too long fails its test.
package storetest

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// Backend describes the implementation under test.
type Backend struct {
	// New returns two handles on an empty store, as two workers would have them, or
	// the same handle twice. It registers a cleanup that closes them.
	New func(t *testing.T) (a, b store.Store)

	// CompareAndSetWakesNobody is set if Wait does not return when CompareAndSet
	// creates the key, as with PyTorch's own server. It skips that test.
	CompareAndSetWakesNobody bool

	// RefusesByClosing is set if a server rejects a request by closing the connection.
	// The error is then store.ErrDisconnected instead of the reason.
	RefusesByClosing bool
}

// Run runs the conformance tests as subtests of t, each on stores that b.New returns.
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

// fixture is the context of one test.
type fixture struct {
	*testing.T
	backend Backend
	ctx     context.Context // ends at the time limit of the test
	a, b    store.Store
}

func (c testCase) run(t *testing.T, b Backend) {
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	f := fixture{T: t, backend: b, ctx: ctx}
	f.a, f.b = b.New(t)
	c.test(f)
}

// wantValue fails the test unless Get returns value for key on both handles.
func (f fixture) wantValue(key, value string) {
	f.Helper()
	for _, s := range []store.Store{f.a, f.b} {
		got, err := s.Get(f.ctx, key)
		require.NoError(f, err)
		require.Equal(f, value, string(got))
	}
}

// wantMissing fails the test unless Get of key returns nil and store.ErrNotFound on both handles.
func (f fixture) wantMissing(key string) {
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

// yield gives other goroutines time to block, by calling runtime.Gosched repeatedly. No test relies
// on it: it only makes the interesting interleaving likely.
func yield() {
	for range 100 {
		runtime.Gosched()
	}
}

var endCases = []testCase{
	{"ContextThatHasEnded", contextThatHasEnded},
	{"Close", closes},
	{"CloseUnderWait", closeUnderWait},
}

// callAll calls each method of s but Close once, and returns the errors by the name of the
// operation, as in store.Error.Op. A nil error is an entry too.
func callAll(ctx context.Context, s store.Store) map[string]error {
	errs := map[string]error{"set": s.Set(ctx, "key", []byte("changed"))}
	_, errs["get"] = s.Get(ctx, "key")
	errs["wait"] = s.Wait(ctx, "key")
	_, errs["add"] = s.Add(ctx, "number", 1)
	_, errs["compare-and-set"] = s.CompareAndSet(ctx, "key", []byte("1"), []byte("changed"))
	_, errs["delete"] = s.Delete(ctx, "key")
	_, errs["watch"] = s.Watch(ctx, "key")
	return errs
}

// contextThatHasEnded tests that each call with a cancelled context fails with context.Canceled,
// names its operation, and changes no value, even if the call would not block.
func contextThatHasEnded(f fixture) {
	f.set(f.a, "key", "1")
	f.set(f.a, "number", "1")
	cancelled, cancel := context.WithCancel(f.ctx)
	cancel()
	for op, err := range callAll(cancelled, f.a) {
		require.ErrorIs(f, err, context.Canceled, op)
		var typed *store.Error
		require.ErrorAs(f, err, &typed, op)
		require.Equal(f, op, typed.Op)
	}
	f.wantValue("key", "1")
	f.wantValue("number", "1")
}

func closes(f fixture) {
	f.set(f.a, "key", "1")
	require.NoError(f, f.a.Close())
	require.NoError(f, f.a.Close())
	for op, err := range callAll(f.ctx, f.a) {
		require.ErrorIs(f, err, store.ErrClosed, op)
	}
}

func closeUnderWait(f fixture) {
	one, two := f.wait(f.a, "key"), f.wait(f.a, "one", "two")
	require.NoError(f, f.a.Close())
	require.ErrorIs(f, testwait.Finish(f, one), store.ErrClosed)
	require.ErrorIs(f, testwait.Finish(f, two), store.ErrClosed)
}
