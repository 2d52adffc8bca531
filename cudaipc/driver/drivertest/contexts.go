package drivertest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var contextCases = []testCase{
	{"Primary", 1, primaryContexts},
	{"Nested", 2, nestedContexts},
	{"Thread", 1, threadOfContext},
	{"Concurrent", 2, concurrentContexts},
	{"None", 1, noContext},
	{"Zero", 1, zeroContext},
}

// Without a fixture, which retains the contexts, they are active from the first PrimaryContextRetain
// to the last PrimaryContextRelease.
func inactiveContext(t *testing.T, d driver.Driver) {
	wantActive := func(want bool) {
		t.Helper()
		active, err := d.PrimaryContextActive(0)
		require.NoError(t, err)
		require.Equal(t, want, active)
	}
	wantActive(false)
	for range 2 {
		_, err := d.PrimaryContextRetain(0)
		require.NoError(t, err)
		wantActive(true)
	}
	require.NoError(t, d.PrimaryContextRelease(0))
	wantActive(true)
	require.NoError(t, d.PrimaryContextRelease(0))
	wantActive(false)
}

func primaryContexts(f *fixture) {
	for dev, c := range f.contexts {
		again, err := f.PrimaryContextRetain(dev)
		require.NoError(f, err)
		require.Equal(f, c, again)
		require.NoError(f, f.PrimaryContextRelease(dev))
		active, err := f.PrimaryContextActive(dev)
		require.NoError(f, err)
		require.True(f, active)
	}
}

// deviceOf returns the device of the current context.
func deviceOf(f *fixture) int {
	p, err := f.Alloc(1)
	require.NoError(f, err)
	dev, err := f.PointerAttribute(driver.PointerDevice, p)
	require.NoError(f, err)
	require.NoError(f, f.Free(p))
	return int(dev)
}

// nestedContexts checks that Pop restores the context that was current before, and without one
// calls fail.
func nestedContexts(f *fixture) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	none := func() {
		_, err := f.Alloc(1)
		f.wantError(err, driver.ResultInvalidContext)
	}
	none()
	f.on(0, func() {
		require.Equal(f, 0, deviceOf(f))
		f.on(1, func() {
			require.Equal(f, 1, deviceOf(f))
			f.on(1, func() { require.Equal(f, 1, deviceOf(f)) })
			f.on(0, func() { require.Equal(f, 0, deviceOf(f)) })
			require.Equal(f, 1, deviceOf(f))
		})
		require.Equal(f, 0, deviceOf(f))
	})
	none()
}

// isLocked reports whether the calling goroutine is bound to its thread, which only the runtime's
// description of the goroutine contains.
func isLocked() bool {
	buf := make([]byte, 256)
	state, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "\n")
	return strings.Contains(state, "locked to thread")
}

// threadOfContext checks that the goroutine is bound to its thread from the first Push to the
// last Pop.
func threadOfContext(f *fixture) {
	require.False(f, isLocked())
	f.on(0, func() {
		require.True(f, isLocked())
		f.on(0, func() { require.True(f, isLocked()) })
		require.True(f, isLocked())
	})
	require.False(f, isLocked())
}

// concurrentContexts checks that goroutines with contexts of different devices do not disturb
// each other.
func concurrentContexts(f *fixture) {
	const goroutines, each = 8, 20
	var done []<-chan error
	for i := range goroutines {
		dev := i % 2
		done = append(done, testwait.Start(func() error {
			for range each {
				if err := allocFree(f, dev); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for _, d := range done {
		require.NoError(f, <-d)
	}
}

// allocFree allocates memory on dev, and frees it. It returns an error where the driver does, or if
// the memory is on another device.
func allocFree(f *fixture, dev int) error {
	if err := f.Push(f.contexts[dev]); err != nil {
		return err
	}
	defer f.Pop()
	p, err := f.Alloc(100)
	if err != nil {
		return err
	}
	runtime.Gosched()
	got, err := f.PointerAttribute(driver.PointerDevice, p)
	if err == nil && int(got) != dev {
		err = fmt.Errorf("memory of device %d is on device %d", dev, got)
	}
	return errors.Join(err, f.Free(p))
}

func noContext(f *fixture) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := f.Alloc(1)
	f.wantError(err, driver.ResultInvalidContext)
	_, err = f.AllocHost(1)
	f.wantError(err, driver.ResultInvalidContext)
	_, err = f.NewStream()
	f.wantError(err, driver.ResultInvalidContext)
	_, err = f.NewEvent(0)
	f.wantError(err, driver.ResultInvalidContext)
	_, err = f.LoadModule(kernels)
	f.wantError(err, driver.ResultInvalidContext)
	_, _, err = f.MemInfo()
	f.wantError(err, driver.ResultInvalidContext)
}

// zeroContext checks that a Push that fails does not bind the goroutine.
func zeroContext(f *fixture) {
	err := f.Push(0)
	require.False(f, isLocked())
	f.wantError(err, driver.ResultInvalidContext, driver.ResultInvalidValue)
}
