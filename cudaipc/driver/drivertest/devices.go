package drivertest

import (
	"math"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

var deviceCases = []testCase{
	{"Version", 1, version},
	{"Names", 1, names},
	{"UUIDs", 1, uuids},
	{"Attributes", 1, attributes},
	{"Peers", 1, peers},
	{"Unknown", 1, unknownDevices},
}

func version(f *fixture) {
	v, err := f.Version()
	require.NoError(f, err)
	require.GreaterOrEqual(f, v, 11000)
	require.Less(f, v, 100000)
}

func names(f *fixture) {
	for dev := range f.contexts {
		name, err := f.DeviceName(dev)
		require.NoError(f, err)
		require.NotEmpty(f, name)
		require.False(f, strings.Contains(name, "\x00"), "%q", name)
	}
}

func uuids(f *fixture) {
	seen := map[driver.UUID]int{{}: -1}
	for dev := range f.contexts {
		id, err := f.DeviceUUID(dev)
		require.NoError(f, err)
		require.NotContains(f, seen, id, "device %d", dev)
		seen[id] = dev
		again, err := f.DeviceUUID(dev)
		require.NoError(f, err)
		require.Equal(f, id, again)
	}
}

func attributes(f *fixture) {
	for dev := range f.contexts {
		for a, highest := range map[driver.DeviceAttribute]int{
			driver.AttributeComputeMode:       3,
			driver.AttributeMajor:             99,
			driver.AttributeMinor:             9,
			driver.AttributeIntegrated:        1,
			driver.AttributeUnifiedAddressing: 1,
		} {
			v, err := f.DeviceAttribute(a, dev)
			require.NoError(f, err)
			require.GreaterOrEqual(f, v, 0, "attribute %d", a)
			require.LessOrEqual(f, v, highest, "attribute %d", a)
		}
		major, err := f.DeviceAttribute(driver.AttributeMajor, dev)
		require.NoError(f, err)
		require.Positive(f, major)
		events, err := f.DeviceAttribute(driver.AttributeIPCEvents, dev)
		if err != nil {
			f.wantError(err, driver.ResultInvalidValue)
		}
		require.Contains(f, []int{0, 1}, events)
	}
}

func peers(f *fixture) {
	for dev := range f.contexts {
		for peer := range f.contexts {
			can, err := f.DeviceCanAccessPeer(dev, peer)
			require.NoError(f, err)
			require.False(f, can && dev == peer, "a device is no peer of itself")
			if !can {
				continue
			}
			f.on(dev, func() {
				// It stays enabled, also for the tests to come.
				if err := f.EnablePeerAccess(f.contexts[peer]); err != nil {
					f.wantError(err, driver.ResultPeerAccessEnabled)
				}
				f.wantError(f.EnablePeerAccess(f.contexts[peer]), driver.ResultPeerAccessEnabled)
			})
		}
	}
}

// unknownDevices checks that numbers that are no device are errors, also if the 32 bits of a
// CUdevice cannot hold them.
func unknownDevices(f *fixture) {
	for _, dev := range []int{-1, len(f.contexts), math.MaxInt, math.MinInt} {
		_, err := f.DeviceName(dev)
		f.wantError(err, driver.ResultInvalidDevice)
		_, err = f.DeviceUUID(dev)
		f.wantError(err, driver.ResultInvalidDevice)
		_, err = f.DeviceAttribute(driver.AttributeMajor, dev)
		f.wantError(err, driver.ResultInvalidDevice)
		_, err = f.DeviceCanAccessPeer(dev, 0)
		f.wantError(err, driver.ResultInvalidDevice)
		_, err = f.DeviceCanAccessPeer(0, dev)
		f.wantError(err, driver.ResultInvalidDevice)
		_, err = f.PrimaryContextRetain(dev)
		f.wantError(err, driver.ResultInvalidDevice)
		f.wantError(f.PrimaryContextRelease(dev), driver.ResultInvalidDevice)
		_, err = f.PrimaryContextActive(dev)
		f.wantError(err, driver.ResultInvalidDevice)
	}
}
