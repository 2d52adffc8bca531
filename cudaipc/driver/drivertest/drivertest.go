// Package drivertest is the conformance suite of package driver: it tests that an implementation
// keeps the contracts that the comments of driver.Driver state.
//
// An implementation runs it in one of its tests:
//
//	func TestConformance(t *testing.T) { drivertest.Run(t, mine.Open) }
//
// The suite needs a device, or a simulated driver with the kernels add_f32 and sleep_ns. Tests of two
// devices are skipped where there is only one. A test that needs work in progress enqueues a kernel
// that runs for some time; a slow machine makes such a test slow and does not make it fail.
package drivertest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// testCase is one test. It runs with a driver that has at least devices devices.
type testCase struct {
	name    string
	devices int
	test    func(f *fixture)
}

// Run runs the conformance tests as subtests of t, each with the driver that open returns. It calls
// open once, and once in each of the processes that it starts. It skips t if the error of open
// matches errors.ErrUnsupported, because the machine has no device then.
func Run(t *testing.T, open func() (driver.Driver, error)) {
	d, err := open()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	count, err := d.DeviceCount()
	require.NoError(t, err)
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"Devices", deviceCases},
		{"Contexts", contextCases},
		{"Memory", memoryCases},
		{"HostMemory", hostMemoryCases},
		{"Copies", copyCases},
		{"Streams", streamCases},
		{"Events", eventCases},
		{"Kernels", kernelCases},
		{"Handles", handleCases},
		{"Allocations", allocationCases},
	} {
		for _, c := range group.cases {
			t.Run(group.name+"/"+c.name, func(t *testing.T) {
				if count < c.devices {
					t.Skipf("needs %d devices, and there are %d here", c.devices, count)
				}
				testwait.Watch(t, 0)
				c.test(newFixture(t, d))
			})
		}
	}
	t.Run("Contexts/Inactive", func(t *testing.T) { inactiveContext(t, d) })
	t.Run("Handles/BetweenProcesses", func(t *testing.T) { betweenProcesses(t, d) })
}
