package drivertest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

var allocationCases = []testCase{
	{"Enqueue", 1, allocationsOfEnqueue},
	{"EventDone", 1, allocationsOfEventDone},
}

// wantNoAllocations checks that call allocates no Go memory. Under the race detector it only makes the
// calls, because pools drop objects at random there.
func (f *fixture) wantNoAllocations(name string, call func()) {
	f.Helper()
	if race.Enabled {
		call()
		return
	}
	require.Zero(f, testing.AllocsPerRun(100, call), name)
}

// allocationsOfEnqueue checks that the calls of each transfer allocate nothing.
func allocationsOfEnqueue(f *fixture) {
	s, e, p, q := f.stream(0), f.event(0), f.alloc(0, 100), f.alloc(0, 100)
	h := f.host(100)
	failed := 0
	count := func(err error) {
		if err != nil {
			failed++
		}
	}
	f.wantNoAllocations("Push and Pop", func() {
		count(f.Push(f.contexts[0]))
		f.Pop()
	})
	f.on(0, func() {
		f.wantNoAllocations("Record", func() { count(f.Record(e, s)) })
		f.wantNoAllocations("Wait", func() { count(f.Wait(s, e)) })
		f.wantNoAllocations("Copy within a device", func() { count(f.Copy(p, q, 100, s)) })
		f.wantNoAllocations("Copy to the host", func() { count(f.Copy(driver.HostPtr(h), p, 100, s)) })
		f.wantNoAllocations("Fill", func() { count(f.Fill(p, 1, 25, s)) })
	})
	require.Zero(f, failed)
}

// allocationsOfEventDone checks that polling an event allocates nothing, whether it is done or
// not.
func allocationsOfEventDone(f *fixture) {
	s, e := f.stream(0), f.event(0)
	var done bool
	var err error
	poll := func() { done, err = f.EventDone(e) }
	f.on(0, func() {
		f.whileBusy(0, s, func() bool {
			require.NoError(f, f.Record(e, s))
			f.wantNoAllocations("EventDone of an event to come", poll)
			require.NoError(f, err)
			return !done
		})
		require.NoError(f, f.SyncStream(s))
		f.wantNoAllocations("EventDone", poll)
		require.NoError(f, err)
		require.True(f, done)
	})
}
