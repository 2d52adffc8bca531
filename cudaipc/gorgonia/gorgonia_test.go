package gorgonia_test

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver/drivertest"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/gorgonia"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// open returns the driver. It skips the test where there is no device.
func open(t *testing.T) driver.Driver {
	t.Helper()
	d, err := gorgonia.New()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return d
}

func TestConformance(t *testing.T) { drivertest.Run(t, gorgonia.New) }

// A program without a device runs, and learns the reason from New.
func TestNoDevice(t *testing.T) {
	hideDevices := func(_ *testing.T, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=-1") }
	if !subprocess.InChild(t, hideDevices) {
		return
	}
	for range 2 {
		d, err := gorgonia.New()
		require.Nil(t, d)
		var notViable *driver.NotViableError
		require.ErrorAs(t, err, &notViable)
		require.ErrorIs(t, err, driver.ResultNoDevice)
	}
}

// Objects of cu work in calls of the driver, and the other way round.
func TestConversions(t *testing.T) {
	d := open(t)
	ctx, err := cu.Device(0).RetainPrimaryCtx()
	require.NoError(t, err)
	defer func() { require.NoError(t, cu.Device(0).ReleasePrimaryCtx()) }()
	c, err := d.PrimaryContextRetain(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.PrimaryContextRelease(0)) }()
	require.Equal(t, c, gorgonia.Context(ctx))
	require.Equal(t, ctx, gorgonia.CUContext(c))

	require.NoError(t, d.Push(c))
	defer d.Pop()
	theirs, err := cu.MakeStream(cu.NonBlocking)
	require.NoError(t, err)
	ours, err := d.NewStream()
	require.NoError(t, err)
	for _, s := range []driver.Stream{gorgonia.Stream(theirs), ours} {
		checkCopy(t, d, s)
		require.Equal(t, s, gorgonia.Stream(gorgonia.CUStream(s)))
	}
	require.NoError(t, d.DestroyStream(gorgonia.Stream(theirs)))
	destroyed := gorgonia.CUStream(ours)
	require.NoError(t, destroyed.Destroy())
}

// checkCopy copies memory of cu with the stream s, once ordered by an event of cu, and once by one
// of d.
func checkCopy(t *testing.T, d driver.Driver, s driver.Stream) {
	t.Helper()
	p, err := cu.MemAlloc(4)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Free(gorgonia.Ptr(p))) }()
	require.Equal(t, p, gorgonia.DevicePtr(gorgonia.Ptr(p)))
	theirs, err := cu.MakeEvent(cu.DisableTiming)
	require.NoError(t, err)
	ours, err := d.NewEvent(driver.EventDisableTiming)
	require.NoError(t, err)
	for i, e := range []driver.Event{gorgonia.Event(theirs), ours} {
		want := uint32(7 + i)
		require.NoError(t, d.Fill(gorgonia.Ptr(p), want, 1, s))
		require.NoError(t, d.Record(e, s))
		require.NoError(t, gorgonia.CUEvent(e).Synchronize())
		got := make([]byte, 4)
		require.NoError(t, cu.MemcpyDtoH(unsafe.Pointer(&got[0]), p, 4))
		require.Equal(t, want, binary.NativeEndian.Uint32(got))
		require.NoError(t, d.DestroyEvent(e))
	}
}

// Errors that cu wraps, too, have the name of the function and the number of the driver.
func TestErrorsOfCU(t *testing.T) {
	_, _, err := open(t).AddressRange(1) // without a context
	var call *driver.CallError
	require.ErrorAs(t, err, &call)
	require.Equal(t, driver.CallError{Call: "cuMemGetAddressRange", Result: driver.ResultInvalidContext}, *call)
}
