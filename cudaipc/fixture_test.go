package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// fixture is a Kind on the simulated driver. At the end of the test the Kind is closed, and the test
// fails if the driver was misused.
type fixture struct {
	testing.TB
	*Kind
	control *cusim.Control
	zero    device.Device
	one     device.Device

	hostAllocs int // calls at the beginning
}

func newFixture(t testing.TB, o Options) *fixture { return newFixtureWith(t, o, nil) }

// newFixtureWith sets options of the simulator at first. Those of devices need a process of its own.
func newFixtureWith(t testing.TB, o Options, simulator map[string]string) *fixture {
	lib := cusim.Library(t)
	control, err := cusim.Open(lib)
	require.NoError(t, err)
	for name, value := range simulator {
		require.NoError(t, control.Set(name, value))
	}
	d, err := driver.Open(lib)
	require.NoError(t, err)
	k, err := New(d, o)
	require.NoError(t, err)
	require.NoError(t, k.Viable())
	misuses := control.Misuse()
	f := &fixture{TB: t, Kind: k, control: control, zero: k.Devices()[0], one: k.Devices()[1]}
	f.hostAllocs = control.Calls("cuMemHostAlloc")
	t.Cleanup(func() {
		f.set("CUSIM_FAIL", "")
		f.set("CUSIM_DELAY_US", "")
		control.ReleaseAll()
		require.NoError(t, k.Close())
		require.Equal(t, misuses, control.Misuse(), control.LastMisuse())
	})
	return f
}

// Name returns the name of the test. Kind has a method of that name too.
func (f *fixture) Name() string { return f.TB.Name() }

// set sets an option of the simulator until the end of the test.
func (f *fixture) set(option, value string) {
	f.Helper()
	require.NoError(f, f.control.Set(option, value))
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
	require.NoError(f, f.control.Hold(uintptr(s.Handle())))
	return func() {
		f.Helper()
		require.NoError(f, f.control.Release(uintptr(s.Handle())))
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
	before := f.control.Blocking()
	require.NoError(f, f.Copy(b, device.Bytes(p)))
	require.Equal(f, before, f.control.Blocking())
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

// pattern returns n bytes that differ for each seed and from their neighbours.
func pattern(seed, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(seed*31 + i*7 + i>>8)
	}
	return p
}
