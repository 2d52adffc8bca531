//go:build linux && (amd64 || arm64)

package cusim

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// cuda calls the driver.
type cuda struct {
	t      *testing.T
	handle uintptr
}

// openCUDA loads the simulator as a driver, and makes the primary context of device 0 current on the
// calling thread until the end of t.
func openCUDA(t *testing.T) (*Control, cuda) {
	t.Helper()
	lib := Library(t)
	leakcheck.Check(t) // also finds device memory
	control, err := Open(lib)
	require.NoError(t, err)
	handle, err := purego.Dlopen(lib, purego.RTLD_NOW)
	require.NoError(t, err)
	c := cuda{t, handle}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	c.ok("cuInit", 0)
	var ctx uintptr
	c.ok("cuDevicePrimaryCtxRetain", address(&ctx), 0)
	c.ok("cuCtxPushCurrent_v2", ctx)
	t.Cleanup(func() {
		control.ReleaseAll()
		c.ok("cuCtxPopCurrent_v2", 0)
		c.ok("cuDevicePrimaryCtxRelease_v2", 0)
	})
	return control, c
}

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

//go:uintptrescapes
func (c cuda) call(function string, args ...uintptr) int32 {
	c.t.Helper()
	symbol, err := purego.Dlsym(c.handle, function)
	require.NoError(c.t, err)
	result, _, _ := purego.SyscallN(symbol, args...)
	return int32(result)
}

//go:uintptrescapes
func (c cuda) ok(function string, args ...uintptr) {
	c.t.Helper()
	require.Zero(c.t, c.call(function, args...), function)
}

func (c cuda) newStream() (s uintptr) {
	c.ok("cuStreamCreate", address(&s), 1)
	return s
}

func (c cuda) newMemory(bytes uintptr) (p uintptr) {
	c.ok("cuMemAlloc_v2", address(&p), bytes)
	return p
}

const notReady, outOfMemory, invalidValue, notSupported801 = 600, 2, 1, 801

// The driver and the control functions are one simulator.
func TestControl(t *testing.T) {
	control, c := openCUDA(t)
	s := c.newStream()
	p := c.newMemory(16)
	calls := control.Calls("cuMemsetD32Async")
	control.HoldAll()
	c.ok("cuMemsetD32Async", p, 7, 4, s)
	require.EqualValues(t, notReady, c.call("cuStreamQuery", s))
	queued, err := control.Queued(s)
	require.NoError(t, err)
	require.Equal(t, 1, queued)
	require.Equal(t, calls+1, control.Calls("cuMemsetD32Async"))
	control.ReleaseAll()

	blocking := control.Blocking()
	c.ok("cuStreamSynchronize", s)
	host := make([]byte, 16)
	c.ok("cuMemcpyDtoH_v2", address(&host[0]), p, 16)
	require.EqualValues(t, 7, binary.NativeEndian.Uint32(host[12:]))
	require.Equal(t, blocking+2, control.Blocking())

	misuse := control.Misuse()
	require.EqualValues(t, invalidValue, c.call("cuMemsetD32Async", p, 7, 5, s))
	require.Equal(t, misuse+1, control.Misuse())
	require.Contains(t, control.LastMisuse(), "cuMemsetD32Async: 20 bytes at ")

	require.NoError(t, control.Hold(s))
	c.ok("cuMemsetD32Async", p, 7, 1, s)
	require.EqualValues(t, notReady, c.call("cuStreamQuery", s))
	require.NoError(t, control.Release(s))
	c.ok("cuStreamSynchronize", s)
	c.ok("cuStreamDestroy_v2", s)
	c.ok("cuMemFree_v2", p)
	require.Error(t, control.Hold(p))
	require.Error(t, control.Release(p))
	_, err = control.Queued(p)
	require.Error(t, err)
}

func TestSet(t *testing.T) {
	control, c := openCUDA(t)
	require.NoError(t, control.Set("CUSIM_FAIL", "cuMemAlloc_v2:2"))
	var p uintptr
	require.EqualValues(t, outOfMemory, c.call("cuMemAlloc_v2", address(&p), 1))
	require.NoError(t, control.Set("CUSIM_FAIL", ""))
	c.ok("cuMemFree_v2", c.newMemory(1))
	require.Error(t, control.Set("CUSIM_FAIL2", ""))
	require.Error(t, control.Set("CUSIM_DELAY_US", "soon"))
}

// Memory of a pool has no handle, and does not claim to have one.
func TestPool(t *testing.T) {
	control, c := openCUDA(t)
	var handle [64]byte
	for _, pool := range []string{"1", ""} {
		require.NoError(t, control.Set("CUSIM_POOL", pool))
		p := c.newMemory(16)
		require.NoError(t, control.Set("CUSIM_POOL", ""))
		var capable int32
		const legacyIPC = 10
		c.ok("cuPointerGetAttribute", address(&capable), legacyIPC, p)
		require.Equal(t, pool == "", capable == 1)
		require.Equal(t, pool == "", c.call("cuIpcGetMemHandle", address(&handle), p) == 0)
		c.ok("cuMemFree_v2", p)
	}
}

// A process kills itself at the chosen one of its calls, which are counted.
func TestKill(t *testing.T) {
	const childVar = "CUSIM_TEST_CHILD"
	if os.Getenv(childVar) != "" {
		control, c := openCUDA(t)
		require.NoError(t, control.Set("CUSIM_KILL", strconv.Itoa(control.Calls("")+2)))
		os.Stdout.WriteString("before\n")
		c.newMemory(16)
		os.Stdout.WriteString("after one\n")
		c.newMemory(16)
		os.Stdout.WriteString("after two\n")
		return
	}
	Library(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), childVar+"=1")
	out, err := cmd.Output()
	require.Contains(t, string(out), "after one")
	require.NotContains(t, string(out), "after two")
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended)
	require.Equal(t, syscall.SIGKILL, ended.Sys().(syscall.WaitStatus).Signal())
}

// A call that blocks is counted, and other goroutines can release it.
func TestReleaseWakesBlockedCall(t *testing.T) {
	control, c := openCUDA(t)
	s := c.newStream()
	p := c.newMemory(4)
	control.HoldAll()
	c.ok("cuMemsetD32Async", p, 7, 1, s)
	blocking := control.Blocking()
	released := testwait.Start(func() bool {
		for control.Blocking() == blocking {
			runtime.Gosched()
		}
		control.ReleaseAll()
		return true
	})
	c.ok("cuMemFree_v2", p)
	require.True(t, testwait.Finish(t, released))
}

func TestStub(t *testing.T) {
	control, c := openCUDA(t)
	calls := control.Calls("cuGraphCreate")
	require.EqualValues(t, notSupported801, c.call("cuGraphCreate"))
	require.Equal(t, calls+1, control.Calls("cuGraphCreate"))
}

func TestOpenOtherLibrary(t *testing.T) {
	_, err := Open("libc.so.6")
	require.ErrorContains(t, err, "libc.so.6 is not the simulator")
	_, err = Open("/nonexistent/libcuda.so.1")
	require.Error(t, err)
}
