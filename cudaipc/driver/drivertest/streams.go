package drivertest

import (
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

var streamCases = []testCase{
	{"InOrder", 1, streamInOrder},
	{"Done", 1, streamDone},
	{"TwoStreams", 1, func(f *fixture) { orderOfStreams(f, 0, 0) }},
	{"TwoDevices", 2, func(f *fixture) { orderOfStreams(f, 0, 1) }},
	{"TwoDevicesBack", 2, func(f *fixture) { orderOfStreams(f, 1, 0) }},
	{"NoWait", 1, noWait},
	{"Destroy", 1, destroyStream},
}

const words = 10_000 // of the memory in tests of order

// streamInOrder checks that a stream does its work in order: work after slow work is not early.
func streamInOrder(f *fixture) {
	s, p := f.stream(0), f.alloc(0, 4*words)
	f.fill(0, p, 1, words, s)
	f.sleep(0, late, s)
	f.fill(0, p, 2, words, s)
	f.wantWords(0, p, 2, words, s)
}

func streamDone(f *fixture) {
	s := f.stream(0)
	done := func() (done bool) {
		f.on(0, func() {
			var err error
			done, err = f.StreamDone(s)
			require.NoError(f, err)
		})
		return done
	}
	require.True(f, done())
	f.whileBusy(0, s, func() bool { return !done() })
	f.sync(0, s)
	require.True(f, done())
}

// orderOfStreams checks that work after Wait sees the work before Record, on another stream and on
// another device, and the other direction: the memory is not overwritten before it has been read.
func orderOfStreams(f *fixture, writer, reader int) {
	w, r := f.stream(writer), f.stream(reader)
	written, read := f.event(writer), f.event(reader)
	p, q := f.alloc(writer, 4*words), f.alloc(reader, 4*words)
	f.fill(writer, p, 1, words, w)
	f.fill(reader, q, 1, words, r)
	f.sync(writer, w)
	f.sync(reader, r)

	f.sleep(writer, late, w)
	f.fill(writer, p, 2, words, w)
	f.record(writer, written, w)
	f.wait(reader, r, written)
	f.sleep(reader, late, r)
	f.copy(reader, q, p, 4*words, r)
	f.record(reader, read, r)
	f.wait(writer, w, read)
	f.fill(writer, p, 3, words, w)

	f.wantWords(reader, q, 2, words, r)
	f.wantWords(writer, p, 3, words, w)
}

// noWait checks that calls for a stream at work do not wait for it.
func noWait(f *fixture) {
	s, e, p, q, h := f.stream(0), f.event(0), f.alloc(0, 4*words), f.alloc(0, 4*words), f.host(4*words)
	f.whileBusy(0, s, func() bool {
		f.fill(0, p, 1, words, s)
		f.copy(0, q, p, 4*words, s)
		f.copy(0, driver.HostPtr(h), q, 4*words, s)
		f.record(0, e, s)
		f.wait(0, s, e)
		f.on(0, func() {
			other, err := f.NewStream()
			require.NoError(f, err)
			require.NoError(f, f.Wait(other, e))
			require.NoError(f, f.DestroyStream(other))
			of, err := f.NewEvent(sharedEvent)
			require.NoError(f, err)
			require.NoError(f, f.Record(of, s))
			_, err = f.EventHandle(of)
			require.NoError(f, err)
			_, err = f.MemHandle(p)
			require.NoError(f, err)
			require.NoError(f, f.DestroyEvent(of))
		})
		return !f.eventDone(0, e)
	})
	f.sync(0, s)
}

// destroyStream checks that DestroyStream returns while the stream is at work, and that this work is
// done nevertheless.
func destroyStream(f *fixture) {
	p, e, other := f.alloc(0, 4*words), f.event(0), f.stream(0)
	for d, busy := late, false; !busy; d *= 2 {
		require.Less(f, d, longest, "DestroyStream waits for the work of the stream")
		f.fill(0, p, 1, words, other)
		f.sync(0, other)
		s := f.lostStream(0)
		f.sleep(0, d, s)
		f.fill(0, p, 2, words, s)
		f.record(0, e, s)
		f.on(0, func() { require.NoError(f, f.DestroyStream(s)) })
		busy = !f.eventDone(0, e)
		f.wait(0, other, e)
		f.wantWords(0, p, 2, words, other)
	}
	f.on(0, func() { f.wantError(f.DestroyStream(0), driver.ResultInvalidHandle, driver.ResultInvalidValue) })
}
