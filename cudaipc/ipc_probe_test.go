package cudaipc

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Offers of one namespace that respond to each other pass the probe, and others do not.
func TestProbe(t *testing.T) {
	c := NewIPC(newFixture(t, Options{}).Kind)
	first := c.Offer(nil)
	require.LessOrEqual(t, len(first), channel.MaxOffer)
	require.NotEqual(t, first, c.Offer(nil))
	require.NoError(t, c.Probe(first, nil))
	answer := c.Offer(first)
	require.NoError(t, c.Probe(answer, first))

	for name, offer := range map[string][]byte{
		"an echo": first, "of a new pipe": c.Offer(nil), "an answer to another peer": c.Offer(answer),
	} {
		require.ErrorContains(t, c.Probe(offer, first), "does not respond", name)
	}
	for _, other := range [][]byte{answer[:nonceSize], answer[:len(answer)-1], append(bytes.Clone(answer), '0')} {
		require.ErrorIs(t, c.Probe(other, first), errOtherNamespace)
	}
	require.ErrorIs(t, c.Probe(nil, nil), channel.ErrProtocol)
	require.ErrorIs(t, c.Probe(first[:nonceSize-1], nil), channel.ErrProtocol)
}

// A factory does not serve devices whose driver excludes handles, without initialising a context, and has the
// reasons. If it serves none, it is not viable.
func TestDevicesWithoutHandles(t *testing.T) {
	f := newFixture(t, Options{})
	f.set("CUSIM_NO_IPC", "1")
	without, err := New(f.Driver(), Options{})
	f.set("CUSIM_NO_IPC", "")
	require.NoError(t, err)
	contexts := f.simulator().Calls("cuDevicePrimaryCtxRetain")
	c := NewIPC(without)
	require.ErrorContains(t, c.Viable(), "cudaipc: cuda:0 has no handles for other processes; cudaipc: cuda:1 has no handles")
	require.ErrorIs(t, c.Viable(), errors.ErrUnsupported)
	for _, d := range without.Devices() {
		var refused *HandleError
		require.ErrorAs(t, c.Unusable()[d], &refused)
		require.Equal(t, HandleError{Device: d}, *refused)
		require.ErrorIs(t, without.CheckIPC(d), refused)
	}
	require.Equal(t, contexts, f.simulator().Calls("cuDevicePrimaryCtxRetain"))
	require.NoError(t, without.Close())
}

// A driver that does not know the property may have handles.
func TestHandlesOfAnOldDriver(t *testing.T) {
	f := newFixture(t, Options{})
	k, err := New(oldDriver{f.Driver()}, Options{})
	require.NoError(t, err)
	c := NewIPC(k)
	require.NoError(t, c.Viable())
	require.Empty(t, c.Unusable())
	require.NoError(t, k.CheckIPC(f.zero))
	require.NoError(t, k.Close())
}

type oldDriver struct{ driver.Driver }

// DeviceAttribute fails for attributes that CUDA 11 does not have.
func (d oldDriver) DeviceAttribute(a driver.DeviceAttribute, dev int) (int, error) {
	if a == driver.AttributeIPCEvents {
		return 0, driver.Check("cuDeviceGetAttribute", driver.ResultInvalidValue)
	}
	return d.Driver.DeviceAttribute(a, dev)
}

// A refused handle is recorded if the driver does not support or permit handles.
func TestRefusalIsRecorded(t *testing.T) {
	for result, recorded := range map[driver.Result]bool{
		driver.ResultInvalidValue: false, driver.ResultOutOfMemory: false,
		driver.ResultNotSupported: true, driver.ResultNotPermitted: true, faultResult: false,
	} {
		for _, call := range []string{"cuIpcGetMemHandle", "cuIpcGetEventHandle"} {
			f := newFixture(t, Options{})
			events := f.simulator().Calls("cuEventCreate") - f.control.Calls("cuEventDestroy_v2")
			served := NewIPC(f.Kind)
			f.set("CUSIM_FAIL", fmt.Sprintf("%s:%d", call, result))
			err := f.CheckIPC(f.zero)
			f.set("CUSIM_FAIL", "")
			require.ErrorIs(t, err, result)
			require.Equal(t, events, f.control.Calls("cuEventCreate")-f.control.Calls("cuEventDestroy_v2"))
			var want channel.DeviceErrors
			if recorded {
				var refused *HandleError
				require.ErrorAs(t, err, &refused)
				want = channel.DeviceErrors{f.zero: refused}
			}
			require.Empty(t, served.Unusable(), "it is the same at each call")
			var failed channel.DeviceErrors
			if err := served.Probe(served.Offer(nil), nil); err != nil {
				require.ErrorAs(t, err, &failed)
			}
			require.Equal(t, want, failed)
			require.Equal(t, recorded, NewIPC(f.Kind).Unusable()[device.Device{Kind: Name}] != nil)
		}
	}
}
