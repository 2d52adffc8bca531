package drivertest

import (
	_ "embed"
	"encoding/binary"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

//go:embed kernels.ptx
var kernels []byte

// tester is the part of a *testing.T that the suite uses.
type tester interface {
	require.TestingT
	Helper()
	Cleanup(func())
}

// fixture is a driver for one test, with a context for each device. Its methods with a parameter
// dev work in the context of that device. They end the test if the driver returns an error.
// Everything that they create is freed at the end of the test.
type fixture struct {
	tester
	driver.Driver
	contexts []driver.Context  // by device
	sleeps   []driver.Function // the kernel sleep_ns, by device
}

func newFixture(t tester, d driver.Driver) *fixture {
	f := &fixture{tester: t, Driver: d}
	count, err := d.DeviceCount()
	require.NoError(f, err)
	require.Positive(f, count)
	for dev := range count {
		c, err := d.PrimaryContextRetain(dev)
		require.NoError(f, err)
		f.contexts = append(f.contexts, c)
		f.Cleanup(func() { require.NoError(f, d.PrimaryContextRelease(dev)) })
		f.sleeps = append(f.sleeps, f.function(dev, "sleep_ns"))
	}
	return f
}

// on calls use with the context of dev as the current one.
func (f *fixture) on(dev int, use func()) {
	f.Helper()
	require.NoError(f, f.Push(f.contexts[dev]))
	defer f.Pop()
	use()
}

// function returns the kernel with that name of kernels.ptx.
func (f *fixture) function(dev int, name string) (fn driver.Function) {
	f.Helper()
	f.on(dev, func() {
		m, err := f.LoadModule(kernels)
		require.NoError(f, err)
		f.Cleanup(func() { f.on(dev, func() { require.NoError(f, f.UnloadModule(m)) }) })
		fn, err = f.Function(m, name)
		require.NoError(f, err)
		require.NotZero(f, fn)
	})
	return fn
}

func (f *fixture) alloc(dev, size int) (p driver.Ptr) {
	f.Helper()
	f.on(dev, func() {
		var err error
		p, err = f.Alloc(size)
		require.NoError(f, err)
		require.NotZero(f, p)
	})
	f.Cleanup(func() { f.on(dev, func() { require.NoError(f, f.Free(p)) }) })
	return p
}

// host returns page-locked memory, allocated in the context of device 0.
func (f *fixture) host(size int) (p []byte) {
	f.Helper()
	f.on(0, func() {
		var err error
		p, err = f.AllocHost(size)
		require.NoError(f, err)
		require.Len(f, p, size)
	})
	f.Cleanup(func() { f.on(0, func() { require.NoError(f, f.FreeHost(p)) }) })
	return p
}

// stream returns a stream, whose work is waited for at the end of the test.
func (f *fixture) stream(dev int) driver.Stream {
	f.Helper()
	s := f.lostStream(dev)
	f.Cleanup(func() {
		f.sync(dev, s)
		f.on(dev, func() { require.NoError(f, f.DestroyStream(s)) })
	})
	return s
}

// lostStream returns a stream that the test destroys itself.
func (f *fixture) lostStream(dev int) (s driver.Stream) {
	f.Helper()
	f.on(dev, func() {
		var err error
		s, err = f.NewStream()
		require.NoError(f, err)
		require.NotZero(f, s)
	})
	return s
}

func (f *fixture) event(dev int) driver.Event {
	f.Helper()
	e := f.lostEvent(dev, driver.EventDisableTiming)
	f.Cleanup(func() { f.on(dev, func() { require.NoError(f, f.DestroyEvent(e)) }) })
	return e
}

// lostEvent returns an event that the test destroys itself.
func (f *fixture) lostEvent(dev int, flags driver.EventFlags) (e driver.Event) {
	f.Helper()
	f.on(dev, func() {
		var err error
		e, err = f.NewEvent(flags)
		require.NoError(f, err)
		require.NotZero(f, e)
	})
	return e
}

func (f *fixture) record(dev int, e driver.Event, s driver.Stream) {
	f.Helper()
	f.on(dev, func() { require.NoError(f, f.Record(e, s)) })
}

func (f *fixture) wait(dev int, s driver.Stream, e driver.Event) {
	f.Helper()
	f.on(dev, func() { require.NoError(f, f.Wait(s, e)) })
}

func (f *fixture) sync(dev int, s driver.Stream) {
	f.Helper()
	f.on(dev, func() { require.NoError(f, f.SyncStream(s)) })
}

func (f *fixture) eventDone(dev int, e driver.Event) (done bool) {
	f.Helper()
	f.on(dev, func() {
		var err error
		done, err = f.EventDone(e)
		require.NoError(f, err)
	})
	return done
}

// fill enqueues that n words at p are set to v.
func (f *fixture) fill(dev int, p driver.Ptr, v uint32, n int, s driver.Stream) {
	f.Helper()
	f.on(dev, func() { require.NoError(f, f.Fill(p, v, n, s)) })
}

func (f *fixture) copy(dev int, dst, src driver.Ptr, n int, s driver.Stream) {
	f.Helper()
	f.on(dev, func() { require.NoError(f, f.Copy(dst, src, n, s)) })
}

// sleep enqueues a kernel that runs for at least d.
func (f *fixture) sleep(dev int, d time.Duration, s driver.Stream) {
	f.Helper()
	args := binary.LittleEndian.AppendUint64(nil, uint64(d))
	one := driver.Dim{X: 1, Y: 1, Z: 1}
	f.on(dev, func() { require.NoError(f, f.Launch(f.sleeps[dev], one, one, 0, s, args)) })
}

// late is the time by which work is delayed that other work must wait for. Without the wait the
// other work comes first.
const late = 30 * time.Millisecond

// longest bounds how long a test keeps a stream at work until a poll must have seen it.
const longest = 10 * time.Second

// whileBusy enqueues a kernel on s and calls check, which returns whether it has seen s at work. If
// the kernel was over too early, whileBusy tries again with one that runs for longer.
func (f *fixture) whileBusy(dev int, s driver.Stream, check func() bool) {
	f.Helper()
	for d := late; d < longest; d *= 2 {
		f.sleep(dev, d, s)
		if check() {
			return
		}
	}
	require.Fail(f, "a stream at work was never seen as such")
}

// wantWords checks that the n words at p equal v, once the work of s is done.
func (f *fixture) wantWords(dev int, p driver.Ptr, v uint32, n int, s driver.Stream) {
	f.Helper()
	got := f.host(4 * n)
	f.copy(dev, driver.HostPtr(got), p, 4*n, s)
	f.sync(dev, s)
	for i := range n {
		require.Equal(f, v, binary.NativeEndian.Uint32(got[4*i:]), "word %d of %d", i, n)
	}
}

// wantError checks that err is a *driver.CallError, with one of the results if there are any.
func (f *fixture) wantError(err error, results ...driver.Result) {
	f.Helper()
	var call *driver.CallError
	require.ErrorAs(f, err, &call)
	require.NotEmpty(f, call.Call)
	require.NotZero(f, call.Result)
	if len(results) > 0 {
		require.Contains(f, results, call.Result, "%v", err)
	}
}
