package cudaipc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

func TestKind(t *testing.T) {
	if !subprocess.InChild(t) { // other tests leave contexts to their peers
		return
	}
	f := newFixture(t, Options{})
	require.Equal(t, "cuda", f.Kind.Name())
	require.Equal(t, device.Device{Kind: "cuda"}, f.zero)
	require.Equal(t, device.Device{Kind: "cuda", Index: 1}, f.second())
	require.Empty(t, f.Unusable())
	require.NotNil(t, f.Driver())
	for _, d := range f.Devices() {
		active, err := f.Driver().PrimaryContextActive(d.Index)
		require.NoError(t, err)
		require.False(t, active, "no context is initialised before its use")
	}
	f.alloc(1, f.stream(f.second()))
	active, err := f.Driver().PrimaryContextActive(0)
	require.NoError(t, err)
	require.False(t, active)
}

// A device that cannot be initialised gives an error, and the others can be used.
func TestBadDevice(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	f := newFixtureWith(t, Options{}, map[string]string{"CUSIM_BAD_DEVICE": "1"})
	f.alloc(1, f.stream(f.zero))
	_, err := f.NewStream(f.second())
	require.ErrorContains(t, err, "cudaipc: cuda:1 cannot be used: driver: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE")
	_, err = f.Alloc(f.second(), 1, nil)
	var failed *ContextError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, f.second(), failed.Device)
	var call *driver.CallError
	require.ErrorAs(t, err, &call)
	require.ErrorIs(t, err, device.ErrDevice)
	require.Contains(t, NewIPC(f.Kind).DeviceDescriptors(), f.second(), "a handshake initialises no context")
}

// A device whose properties cannot be read or do not suffice is not used.
func TestUnusableDevice(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_FAIL", fmt.Sprintf("cuDeviceGetUuid_v2:1:%d", f.simulator().Calls("cuDeviceGetUuid_v2")+1))
	k, err := New(f.Driver(), Options{})
	require.NoError(t, err)
	require.NoError(t, k.Viable())
	require.Equal(t, f.Devices()[1:], k.Devices())
	require.ErrorContains(t, k.Unusable()[f.zero], "cudaipc: cuda:0: it has no identity")
	_, err = k.Alloc(f.zero, 1, nil)
	require.ErrorIs(t, err, device.ErrDevice)
	require.NoError(t, k.Close())

	f.set("CUSIM_FAIL", "cuDeviceGetAttribute:1")
	k, err = New(f.Driver(), Options{})
	require.NoError(t, err)
	require.Empty(t, k.Devices())
	require.ErrorIs(t, k.Viable(), errors.ErrUnsupported)
	require.ErrorContains(t, k.Viable(), "no device can be used")
	require.NoError(t, k.Close())

	f.set("CUSIM_FAIL", "cuDeviceGetCount:999")
	_, err = New(f.Driver(), Options{})
	require.Error(t, err)
}

func TestNoDevice(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	if os.Getenv(onGPU) == "1" {
		t.Skip("the test needs the simulated driver")
	}
	lib := cusim.Library(t)
	control, err := cusim.Open(lib)
	require.NoError(t, err)
	require.NoError(t, control.Set("CUSIM_NO_DEVICE", "1"))
	_, err = driver.Open(lib)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "there is no device")
}

func TestMisuse(t *testing.T) {
	f := newFixture(t, Options{})
	k := f.Kind
	other := delayed.New(Name, 2)
	t.Cleanup(other.Close)
	zero, one := f.stream(f.zero), f.stream(f.second())
	strange, err := other.NewStream(f.zero)
	require.NoError(t, err)
	b := f.alloc(4, zero)
	foreign, err := other.Alloc(f.zero, 4, strange)
	require.NoError(t, err)
	host := device.Bytes(make([]byte, 4))
	allocate := func(d device.Device, n int, s device.Stream) error {
		_, err := k.Alloc(d, n, s)
		return err
	}
	missing := device.Device{Kind: Name, Index: 99}
	_, noStream := k.NewStream(missing)
	_, noStats := k.Stats(missing)
	mem, _ := b.Memory()
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"alloc on the host", allocate(device.CPU(), 1, nil), device.ErrDevice},
		{"alloc on a missing device", allocate(missing, 1, nil), device.ErrDevice},
		{"alloc on a negative device", allocate(device.Device{Kind: Name, Index: -1}, 1, nil), device.ErrDevice},
		{"alloc of a negative size", allocate(f.zero, -1, nil), device.ErrSize},
		{"alloc on another device's stream", allocate(f.zero, 1, one), device.ErrStream},
		{"alloc on another kind's stream", allocate(f.zero, 1, strange), device.ErrStream},
		{"stream on a missing device", noStream, device.ErrDevice},
		{"statistics of a missing device", noStats, device.ErrDevice},
		{"trim of a missing device", k.Trim(missing), device.ErrDevice},
		{"copy from host to host", k.Copy(host, host), device.ErrMemory},
		{"copy of another kind's memory", k.Copy(b, foreign), device.ErrMemory},
		{"copy into another kind's memory", k.Copy(foreign, host), device.ErrMemory},
		{"copy with the wrong device", k.Copy(host, device.On(f.second(), mem, one)), device.ErrMemory},
		{"copy on another device's stream", k.Copy(b.WithStream(one), host), device.ErrStream},
		{"copy on another kind's stream", k.Copy(host, b.WithStream(strange)), device.ErrStream},
		{"copy of host memory on another kind's stream", k.Copy(b, host.WithStream(strange)), device.ErrStream},
		{"use of host memory", k.RecordStream(host, zero), device.ErrMemory},
		{"use of another kind's memory", k.RecordStream(foreign, zero), device.ErrMemory},
		{"use on another device's stream", k.RecordStream(b, one), device.ErrStream},
		{"use without a stream", k.RecordStream(b, nil), device.ErrStream},
	} {
		require.ErrorIs(t, c.err, c.want, c.name)
	}
	var length *device.LengthError
	require.ErrorAs(t, k.Copy(host, b.Slice(0, 3)), &length)
	require.Equal(t, device.LengthError{Dst: 4, Src: 3}, *length)
}

func TestClosedKind(t *testing.T) {
	if !subprocess.InChild(t) { // other tests leave contexts to their peers
		return
	}
	f := newFixture(t, Options{})
	k := f.Kind
	s := f.stream(f.zero)
	b := f.alloc(4, s)
	f.write(b, pattern(1, 4))
	ev, err := s.Record()
	require.NoError(t, err)
	x, err := f.Kernels().Alloc(device.WithStream(t.Context(), s), f.zero, tensor.F32, 4)
	require.NoError(t, err)
	require.NoError(t, f.Kernels().Fill(t.Context(), x, ops.Int(1)))
	unloaded := f.calls("cuModuleUnload")
	require.NoError(t, k.Close())
	require.Equal(t, unloaded+1, f.calls("cuModuleUnload"))
	require.NoError(t, k.Close())
	active, err := f.Driver().PrimaryContextActive(0)
	require.NoError(t, err)
	require.False(t, active)

	_, allocErr := k.Alloc(s.Device(), 1, nil)
	_, hostErr := k.AllocHost(1, s)
	_, streamErr := k.NewStream(s.Device())
	_, recordErr := s.Record()
	_, doneErr := ev.Done()
	_, statsErr := k.Stats(f.zero)
	for name, err := range map[string]error{
		"alloc": allocErr, "host": hostErr, "stream": streamErr, "record": recordErr, "done": doneErr, "stats": statsErr,
		"copy": k.Copy(b, device.Bytes(make([]byte, 4))), "sync": s.Synchronize(t.Context()), "wait": s.Wait(ev),
		"wait for": (&Stream{gpu: s.gpu}).WaitFor(s), "sleep": k.Sleep(s, 1), "trim": k.Trim(f.zero), "fill": f.Kernels().Fill(t.Context(), x, ops.Int(1)),
		"synchronize": ev.Synchronize(t.Context()),
	} {
		require.ErrorIs(t, err, ErrClosed, name)
	}
	x.Release()
	memory(b).release()
	ev.Release()
}

// Close waits for work that uses no memory, too.
func TestCloseWaits(t *testing.T) {
	f := newFixture(t, Options{})
	start := time.Now()
	require.NoError(t, f.Sleep(f.stream(f.zero), 20*time.Millisecond))
	require.NoError(t, f.Close())
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
}

// DeviceOf and Wrap find the device of memory of the application, whatever context is current.
func TestWrap(t *testing.T) {
	f := newFixture(t, Options{})
	d := f.Driver()
	s := f.stream(f.second())
	f.stream(f.zero)
	g := f.gpus[1]
	require.NoError(t, g.enter())
	p, err := d.Alloc(1000)
	require.NoError(t, err)
	g.leave()
	pinned, err := f.AllocHost(10, s)
	require.NoError(t, err)
	locked, _ := pinned.Contiguous()

	type found struct {
		device device.Device
		err    error
	}
	deviceOf := func() found {
		d, err := f.DeviceOf(p + 999)
		return found{d, err}
	}
	got := testwait.Finish(t, testwait.Start(deviceOf)) // no context is current there
	require.Equal(t, found{f.second(), nil}, got)
	require.NoError(t, f.gpus[0].enter())
	require.Equal(t, found{f.second(), nil}, deviceOf())
	b, err := f.Wrap(p+100, 900, s)
	require.NoError(t, err)
	f.gpus[0].leave()
	require.Equal(t, f.second(), b.Device())
	require.Equal(t, s, b.Stream())
	require.Equal(t, p+100, memory(b).Ptr())
	f.write(b, pattern(1, 900))
	require.Equal(t, pattern(1, 900), f.read(b))
	require.NoError(t, f.RecordStream(b, s))
	whole, err := f.Wrap(p, 1000, nil)
	require.NoError(t, err)
	require.NotNil(t, whole.Stream())
	memory(whole).release() // frees nothing: the application does
	require.Zero(t, f.stats(f.second()))

	heap := make([]byte, 10)
	for name, at := range map[string]driver.Ptr{"heap": driver.HostPtr(heap), "page-locked": driver.HostPtr(locked), "null": 0} {
		_, err := f.DeviceOf(at)
		require.ErrorIs(t, err, device.ErrMemory, name)
		_, err = f.Wrap(at, 1, s)
		require.ErrorIs(t, err, device.ErrMemory, name)
	}
	for _, size := range []int{901, -1, int(^uint(0) >> 1)} {
		_, err := f.Wrap(p+100, size, s)
		require.ErrorIs(t, err, device.ErrMemory)
	}
	_, err = f.Wrap(p, 1, f.stream(f.zero))
	require.ErrorIs(t, err, device.ErrStream)
	runtime.KeepAlive(heap)
	require.NoError(t, g.enter())
	require.NoError(t, d.Free(p))
	g.leave()
}

// All methods may be called from any goroutine.
func TestConcurrentUse(t *testing.T) {
	f := newFixture(t, Options{})
	devices := f.Devices()
	work := func() error {
		for i := range 50 {
			s, err := f.NewStream(devices[i%len(devices)])
			if err != nil {
				return err
			}
			b, err := f.Alloc(s.Device(), 100+i*1000, s)
			if err != nil {
				return err
			}
			want := pattern(i, b.Len())
			got := make([]byte, len(want))
			if err := errors.Join(f.Copy(b, device.Bytes(want)), f.Copy(device.Bytes(got), b), s.Synchronize(t.Context())); err != nil {
				return err
			}
			if string(want) != string(got) {
				return errors.New("wrong bytes")
			}
			memory(b).release()
		}
		return nil
	}
	var all []<-chan error
	for range 4 {
		all = append(all, testwait.Start(work))
	}
	for _, ch := range all {
		require.NoError(t, testwait.Finish(t, ch))
	}
}
