package drivertest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

var eventCases = []testCase{
	{"NeverRecorded", 1, eventNeverRecorded},
	{"Done", 1, eventDone},
	{"RecordedAgain", 1, eventRecordedAgain},
	{"Sync", 1, syncEvent},
	{"Destroy", 1, destroyEvent},
	{"OtherDevice", 2, eventOfOtherDevice},
	{"Errors", 1, eventErrors},
}

// eventNeverRecorded checks that an event that was never recorded is done, and waiting for it
// delays nothing.
func eventNeverRecorded(f *fixture) {
	s := f.stream(0)
	for _, flags := range []driver.EventFlags{0, driver.EventDisableTiming, driver.EventDisableTiming | driver.EventInterprocess} {
		e := f.lostEvent(0, flags)
		require.True(f, f.eventDone(0, e))
		f.on(0, func() { require.NoError(f, f.SyncEvent(e)) })
		f.wait(0, s, e)
		f.sync(0, s)
		f.on(0, func() { require.NoError(f, f.DestroyEvent(e)) })
	}
}

func eventDone(f *fixture) {
	s, e := f.stream(0), f.event(0)
	f.whileBusy(0, s, func() bool {
		f.record(0, e, s)
		return !f.eventDone(0, e)
	})
	f.sync(0, s)
	require.True(f, f.eventDone(0, e))
}

// eventRecordedAgain checks that only the last Record counts, and a Wait is for the last one
// before it.
func eventRecordedAgain(f *fixture) {
	busy, idle, e, waited := f.stream(0), f.stream(0), f.event(0), f.event(0)
	f.whileBusy(0, busy, func() bool {
		f.record(0, e, idle)
		f.sync(0, idle)
		f.wait(0, idle, e)
		f.record(0, e, busy)
		f.record(0, waited, idle)
		f.sync(0, idle)
		return f.eventDone(0, waited) && !f.eventDone(0, e)
	})
	f.sync(0, busy)
	require.True(f, f.eventDone(0, e))
}

// syncEvent checks that SyncEvent waits for the work before Record, also of an event of another
// stream than the memory.
func syncEvent(f *fixture) {
	s, e, p := f.stream(0), f.event(0), f.alloc(0, 4*words)
	h := f.host(4 * words)
	f.fill(0, p, 1, words, s)
	f.sleep(0, late, s)
	f.fill(0, p, 0x07070707, words, s)
	f.copy(0, driver.HostPtr(h), p, 4*words, s)
	f.record(0, e, s)
	f.on(0, func() { require.NoError(f, f.SyncEvent(e)) })
	require.True(f, f.eventDone(0, e))
	for i := range h {
		require.Equal(f, byte(7), h[i])
	}
}

// destroyEvent checks that an event may be destroyed while a stream waits for it.
func destroyEvent(f *fixture) {
	w, r, p, q := f.stream(0), f.stream(0), f.alloc(0, 4*words), f.alloc(0, 4*words)
	f.fill(0, p, 1, words, w)
	f.sync(0, w)
	e := f.lostEvent(0, driver.EventDisableTiming)
	f.sleep(0, late, w)
	f.fill(0, p, 2, words, w)
	f.record(0, e, w)
	f.wait(0, r, e)
	f.on(0, func() { require.NoError(f, f.DestroyEvent(e)) })
	f.copy(0, q, p, 4*words, r)
	f.wantWords(0, q, 2, words, r)
}

func eventOfOtherDevice(f *fixture) {
	s, e := f.stream(0), f.event(1)
	f.on(0, func() { f.wantError(f.Record(e, s), driver.ResultInvalidHandle) })
}

func eventErrors(f *fixture) {
	s, e := f.stream(0), f.event(0)
	f.on(0, func() {
		_, err := f.NewEvent(driver.EventInterprocess)
		f.wantError(err, driver.ResultInvalidValue)
		_, err = f.NewEvent(math.MaxUint32)
		f.wantError(err, driver.ResultInvalidValue)
		for _, err := range []error{
			f.Record(0, s),
			f.Wait(s, 0),
			f.SyncEvent(0),
			f.DestroyEvent(0),
		} {
			f.wantError(err, driver.ResultInvalidHandle, driver.ResultInvalidValue)
		}
		done, err := f.EventDone(0)
		f.wantError(err, driver.ResultInvalidHandle, driver.ResultInvalidValue)
		require.False(f, done)
	})
	require.True(f, f.eventDone(0, e))
}
