package cudaipc

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// lifetimes are the functions of the driver that begin and end the lives of its objects.
var lifetimes = map[string]struct{ begin, end []string }{
	"device memory":      {[]string{"cuMemAlloc_v2"}, []string{"cuMemFree_v2"}},
	"page-locked memory": {[]string{"cuMemHostAlloc"}, []string{"cuMemFreeHost"}},
	"events":             {[]string{"cuEventCreate", "cuIpcOpenEventHandle"}, []string{"cuEventDestroy_v2"}},
	"streams":            {[]string{"cuStreamCreate"}, []string{"cuStreamDestroy_v2"}},
	"mappings":           {[]string{"cuIpcOpenMemHandle_v2"}, []string{"cuIpcCloseMemHandle"}},
	"contexts":           {[]string{"cuDevicePrimaryCtxRetain"}, []string{"cuDevicePrimaryCtxRelease_v2"}},
	"modules":            {[]string{"cuModuleLoadData"}, []string{"cuModuleUnload"}},
}

// otherFunctions are those of the driver that the scenarios also call, except cuCtxPopCurrent, whose fault
// has no consequence but those of a context that stays current.
var otherFunctions = []string{
	"cuCtxPushCurrent_v2", "cuDeviceCanAccessPeer", "cuDeviceGetAttribute", "cuDeviceGetCount",
	"cuDeviceGetUuid_v2", "cuEventQuery", "cuEventRecord", "cuIpcGetEventHandle", "cuIpcGetMemHandle", "cuMemGetAddressRange_v2",
	"cuMemcpyAsync", "cuMemsetD32Async", "cuModuleGetFunction", "cuLaunchKernel", "cuPointerGetAttribute", "cuStreamQuery",
	"cuStreamSynchronize", "cuStreamWaitEvent",
}

// If a call of the driver fails, whichever and whenever, there is an error or the bytes are right, nothing
// hangs, and Close frees everything.
func TestFaultOfEachCall(t *testing.T) {
	f := newFaultFixture(t)
	for _, c := range faultScenarios {
		t.Run(c.name, func(t *testing.T) {
			clean := f.runWithFault(t, c, "", 0)
			for function, calls := range clean {
				few := min(calls, race.Pick(c.points, 2))
				for i := range few {
					n := 1 + i*calls/few
					t.Run(fmt.Sprintf("%s:%d", function, n), func(t *testing.T) { f.runWithFault(t, c, function, n) })
				}
			}
		})
	}
}

// A fault does not keep Close from freeing the rest, and Close returns it.
func TestFaultOfClose(t *testing.T) {
	f := newFaultFixture(t)
	for _, function := range []string{
		"cuMemFree_v2", "cuMemFreeHost", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuDevicePrimaryCtxRelease_v2",
		"cuModuleUnload", "cuIpcCloseMemHandle",
	} {
		t.Run(function, func(t *testing.T) {
			k, err := New(f.Driver(), Options{})
			require.NoError(t, err)
			r := faultRun{t, k, f.file, f.want}
			require.NoError(t, errors.Join(r.copies(), r.compute()))
			before := f.counts()
			f.set("CUSIM_FAIL", fmt.Sprintf("%s:%d:%d", function, faultResult, f.control.Calls(function)+1))
			require.NoError(t, r.move(NewIPC(k), true, 2000)) // unmaps memory
			err = k.Close()
			f.set("CUSIM_FAIL", "")
			require.ErrorIs(t, err, faultResult)
			require.ErrorIs(t, k.Close(), faultResult)
			after := f.counts()
			for _, name := range []string{"cuMemFree_v2", "cuMemFreeHost", "cuModuleUnload", "cuDevicePrimaryCtxRelease_v2", "cuIpcCloseMemHandle"} {
				require.Greater(t, after[name], before[name], name)
			}
			f.releaseContexts(t)
			require.Equal(t, f.misuses, f.control.Misuse(), f.control.LastMisuse())
		})
	}
}

// faultFixture is a fixture with a file.
type faultFixture struct {
	*fixture
	file *safetensors.File
	want map[string]*tensor.Tensor // in file
}

func newFaultFixture(t *testing.T) *faultFixture {
	f := &faultFixture{fixture: newFixture(t, Options{})}
	f.simulator()
	f.set("CUSIM_OWN_HANDLES", "1")
	t.Cleanup(func() { f.set("CUSIM_OWN_HANDLES", "") })
	var path string
	path, f.want = largeFile(t)
	f.file = openFile(t, path)
	return f
}

// releaseContexts releases the contexts that a Kind has left to the end of the process.
func (f *faultFixture) releaseContexts(t *testing.T) {
	for _, d := range slices.Backward(f.Devices()) {
		for {
			active, err := f.Driver().PrimaryContextActive(d.Index)
			require.NoError(t, err)
			if !active {
				break
			}
			require.NoError(t, f.Driver().PrimaryContextRelease(d.Index))
		}
	}
}

// counts returns the numbers of calls of each function but cuCtxPopCurrent.
func (f *faultFixture) counts() map[string]int {
	all := make(map[string]int)
	functions := otherFunctions
	for _, l := range lifetimes {
		functions = slices.Concat(functions, l.begin, l.end)
	}
	for _, name := range functions {
		all[name] = f.control.Calls(name)
	}
	return all
}

// faultResult is the error of the calls that fail.
const faultResult = driver.Result(999)

// runWithFault runs c on a new Kind, while the nth call of function from now on fails, and closes the Kind. It
// returns the numbers of calls before that.
func (f *faultFixture) runWithFault(t *testing.T, c faultScenario, function string, n int) map[string]int {
	before, at := f.counts(), f.control.Calls(function)+n
	total, pops := f.control.Calls(""), f.control.Calls("cuCtxPopCurrent_v2")
	if n > 0 {
		f.set("CUSIM_FAIL", fmt.Sprintf("%s:%d:%d", function, faultResult, at))
	}
	calls, closed := map[string]int{}, error(nil)
	err := testwait.Finish(t, testwait.Start(func() error {
		k, err := New(f.Driver(), Options{})
		if err != nil {
			return err
		}
		err = c.run(faultRun{t, k, f.file, f.want})
		f.set("CUSIM_FAIL", "")
		calls = f.counts()
		closed = k.Close()
		return err
	}))
	f.set("CUSIM_FAIL", "")
	failed := n > 0 && f.control.Calls(function) >= at
	for _, err := range []error{err, closed} {
		if !failed {
			require.NoError(t, err)
		} else if err != nil {
			require.NotErrorIs(t, err, errWrongBytes)
			require.ErrorIs(t, err, faultResult)
		}
	}
	require.Equal(t, f.misuses, f.control.Misuse(), f.control.LastMisuse())
	if closed != nil { // memory that could not be unmapped stays, with its context
		f.releaseContexts(t)
		return calls
	}
	after, listed := f.counts(), 0
	for name, l := range lifetimes {
		open := 0
		for _, begin := range l.begin {
			open += after[begin] - before[begin]
			if failed && begin == function {
				open--
			}
		}
		for _, end := range l.end {
			open -= after[end] - before[end]
		}
		require.Zero(t, open, name)
	}
	for name := range after {
		calls[name] -= before[name]
		listed += after[name] - before[name]
	}
	require.Equal(t, f.control.Calls("")-total, listed+f.control.Calls("cuCtxPopCurrent_v2")-pops, "otherFunctions lacks some")
	return calls
}
