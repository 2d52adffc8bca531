package cudaipc

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// onGPU is the environment variable that, set to 1, makes the tests use the real driver. Those that need
// the simulator, or a second GPU that is not there, are skipped.
const onGPU = "TENSORPIPE_GPU"

// fixture is a Kind on the simulated driver, or on the real one. At the end of the test the Kind is closed,
// and the test fails if the simulated driver was misused.
type fixture struct {
	testing.TB
	*Kind
	control *cusim.Control  // nil with the real driver
	counts  *countingDriver // nil with the simulated one
	zero    device.Device

	hostAllocs int // calls at the beginning
	misuses    int // at the beginning, and those that a test expects
}

func newFixture(t testing.TB, o Options) *fixture { return newFixtureWith(t, o, nil) }

// newFixtureWith sets options of the simulator at first. Those of devices need a process of its own.
func newFixtureWith(t testing.TB, o Options, simulator map[string]string) *fixture {
	f := &fixture{TB: t}
	lib := ""
	if os.Getenv(onGPU) != "1" {
		lib = cusim.Library(t)
		var err error
		f.control, err = cusim.Open(lib)
		require.NoError(t, err)
	}
	for name, value := range simulator {
		require.NoError(t, f.simulator().Set(name, value))
	}
	d, err := driver.Open(lib)
	if lib == "" && errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	if lib == "" {
		f.counts = &countingDriver{Driver: d}
		d = f.counts
	}
	if f.control != nil {
		d = drops.WithSites(d, f.control)
	}
	f.Kind, err = New(d, o)
	require.NoError(t, err)
	require.NoError(t, f.Viable())
	f.zero = f.Devices()[0]
	if f.control != nil {
		f.misuses = f.control.Misuse()
	}
	f.hostAllocs = f.calls("cuMemHostAlloc")
	t.Cleanup(func() {
		if f.control == nil {
			require.NoError(t, f.Close())
			return
		}
		f.set("CUSIM_FAIL", "")
		f.set("CUSIM_DELAY_US", "")
		f.control.ReleaseAll()
		require.NoError(t, f.Close())
		require.Equal(t, f.misuses, f.control.Misuse(), f.control.LastMisuse())
	})
	return f
}

// Name returns the name of the test. Kind has a method of that name too.
func (f *fixture) Name() string { return f.TB.Name() }

// simulator returns the control of the simulated driver, and skips the test if there is none.
func (f *fixture) simulator() *cusim.Control {
	f.Helper()
	if f.control == nil {
		f.Skip("the test needs the simulated driver")
	}
	return f.control
}

// second returns another GPU than zero, and skips the test if there is none.
func (f *fixture) second() device.Device {
	f.Helper()
	if len(f.Devices()) < 2 {
		f.Skip("the test needs a second GPU")
	}
	return f.Devices()[1]
}

// calls returns the number of calls of a function of the driver. With the real driver it is that of the
// fixture's Kind, of the functions that countingDriver counts.
func (f *fixture) calls(function string) int {
	if f.control != nil {
		return f.control.Calls(function)
	}
	return f.counts.calls(function)
}

// holder returns hold for any stream, or nil if the driver is the real one.
func (f *fixture) holder() func(device.Stream) func() {
	if f.control == nil {
		return nil
	}
	return func(s device.Stream) func() { return f.hold(s.(*Stream)) }
}

// blocking returns the number of calls that have waited for a device, 0 with the real driver, which does not
// count them.
func (f *fixture) blocking() int {
	if f.control == nil {
		return 0
	}
	return f.control.Blocking()
}

// set sets an option of the simulator until the end of the test. The real driver needs no delay.
func (f *fixture) set(option, value string) {
	f.Helper()
	if f.control == nil && option == "CUSIM_DELAY_US" {
		return
	}
	require.NoError(f, f.simulator().Set(option, value))
}

func (f *fixture) stream(d device.Device) *Stream {
	f.Helper()
	s, err := f.NewStream(d)
	require.NoError(f, err)
	return s.(*Stream)
}

// hold holds back the work of s, and returns a function that ends that.
func (f *fixture) hold(s *Stream) (release func()) {
	f.Helper()
	require.NoError(f, f.simulator().Hold(uintptr(s.Handle())))
	return func() {
		f.Helper()
		require.NoError(f, f.simulator().Release(uintptr(s.Handle())))
	}
}

func (f *fixture) alloc(size int, s *Stream) device.Buffer {
	f.Helper()
	b, err := f.Alloc(s.Device(), size, s)
	require.NoError(f, err)
	return b
}

// write copies p to b, and does not wait.
func (f *fixture) write(b device.Buffer, p []byte) {
	f.Helper()
	before := f.blocking()
	require.NoError(f, f.Copy(b, device.Bytes(p)))
	require.Equal(f, before, f.blocking())
}

// read returns the bytes of b, after the work of its stream.
func (f *fixture) read(b device.Buffer) []byte {
	f.Helper()
	p := make([]byte, b.Len())
	require.NoError(f, f.Copy(device.Bytes(p), b))
	if b.Stream() != nil {
		f.synchronize(b.Stream())
	}
	return p
}

func (f *fixture) synchronize(s device.Stream) {
	f.Helper()
	require.NoError(f, s.Synchronize(f.Context()))
}

func (f *fixture) stats(d device.Device) MemoryStats {
	f.Helper()
	s, err := f.Stats(d)
	require.NoError(f, err)
	return s
}

// pattern returns n bytes that differ for each seed and from their neighbours. They repeat, since
// computing each is slow under the race detector, after a number of bytes that is no multiple of a
// slot.
func pattern(seed, n int) []byte {
	const period = 65_521
	p := make([]byte, n)
	for i := range min(n, period) {
		p[i] = byte(seed*31 + i*7 + i>>8)
	}
	for have := period; have < n; have *= 2 {
		copy(p[have:], p[:have])
	}
	return p
}

// countingDriver counts the calls that create or free something, by the names of the driver's functions. The
// simulated driver counts all calls itself.
type countingDriver struct {
	driver.Driver

	mu sync.Mutex
	n  map[string]int
}

func (d *countingDriver) count(function string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == nil {
		d.n = map[string]int{}
	}
	d.n[function]++
}

func (d *countingDriver) calls(function string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n[function]
}

func (d *countingDriver) Alloc(size int) (driver.Ptr, error) {
	d.count("cuMemAlloc_v2")
	return d.Driver.Alloc(size)
}

func (d *countingDriver) AllocHost(size int) ([]byte, error) {
	d.count("cuMemHostAlloc")
	return d.Driver.AllocHost(size)
}

func (d *countingDriver) FreeHost(p []byte) error {
	d.count("cuMemFreeHost")
	return d.Driver.FreeHost(p)
}

func (d *countingDriver) NewStream() (driver.Stream, error) {
	d.count("cuStreamCreate")
	return d.Driver.NewStream()
}

func (d *countingDriver) NewEvent(flags driver.EventFlags) (driver.Event, error) {
	d.count("cuEventCreate")
	return d.Driver.NewEvent(flags)
}

func (d *countingDriver) UnloadModule(m driver.Module) error {
	d.count("cuModuleUnload")
	return d.Driver.UnloadModule(m)
}

func (d *countingDriver) Launch(f driver.Function, grid, block driver.Dim, shared int, s driver.Stream, args []byte) error {
	d.count("cuLaunchKernel")
	return d.Driver.Launch(f, grid, block, shared, s, args)
}
