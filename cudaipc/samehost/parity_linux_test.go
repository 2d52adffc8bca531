package samehost_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// slow makes each copy and fill take 50 ms.
var slow = map[string]string{"CUSIM_DELAY_US": "50000"}

func TestParity(t *testing.T) {
	for _, r := range race.Pick([]route{direct, staged, directOver, stagedOver}, []route{direct, stagedOver}) {
		t.Run(r.name, func(t *testing.T) {
			parity.Case(t, "tensorpipe/channel.ReceiverWaitsForStartEvent", r.receiverWaitsForStartEvent)
			parity.Case(t, "tensorpipe/channel.SendOffsetAllocation", r.sendOffsetAllocation)
			parity.Case(t, "tensorpipe/channel.SendAcrossDevices", func(t *testing.T) { r.sendBetween(t, gpu(0), gpu(1)) })
			parity.Case(t, "tensorpipe/channel.SendReverseAcrossDevices", func(t *testing.T) { r.sendBetween(t, gpu(1), gpu(0)) })
			parity.Case(t, "tensorpipe/channel.SendAcrossNonDefaultDevices", func(t *testing.T) { r.sendBetween(t, gpu(1), gpu(1)) })
		})
	}
	for _, r := range race.Pick([]route{direct, staged, directOver, stagedOver}, []route{directOver, staged}) {
		r.mixed = true
		t.Run("mixed/"+r.name, func(t *testing.T) {
			parity.Case(t, "tensorpipe/core.CudaSimpleWriteReadWithAllTargetDevices", func(t *testing.T) { r.sendMixed(t, 4) })
			parity.Case(t, "tensorpipe/core.CudaSimpleWriteReadWithSomeTargetDevices", func(t *testing.T) { r.sendMixed(t, 2) })
			parity.Case(t, "tensorpipe/core.CudaSimpleWriteReadWithoutTargetDevice", func(t *testing.T) { r.sendMixed(t, 0) })
		})
	}
	parity.Case(t, "tensorpipe/common.DeviceForPointer", deviceForPointer)
}

// The value that is sent is written after slow work on the stream.
func (r route) receiverWaitsForStartEvent(t *testing.T) {
	const size = 1024
	r.both(t, slow, func(n *node) {
		s := n.stream(gpu(0))
		if n.Rank == 0 {
			b := n.filled(size, s, 0xff)
			n.fill(b, 0x42)
			n.write(gpu(0), b)
			return
		}
		n.requireFilled(n.read(s)[0], 0x42)
	})
}

// The tensor begins at offset 128 of an allocation of the application.
func (r route) sendOffsetAllocation(t *testing.T) {
	const size, offset = 1024, 128
	r.both(t, nil, func(n *node) {
		s := n.stream(gpu(0))
		whole := n.wrap(offset+size, s)
		n.fill(whole, 0xff)
		part := whole.Slice(offset, size)
		if n.Rank == 0 {
			n.fill(part, 0x42)
			n.write(gpu(0), part)
		} else {
			n.readInto(part)
		}
		want := append(bytes.Repeat([]byte{0xff}, offset), bytes.Repeat([]byte{0x42}, size)...)
		require.Equal(n, want, n.bytesOf(whole))
	})
}

// Only the context of the GPU that a process uses is initialised there.
func (r route) sendBetween(t *testing.T, from, to device.Device) {
	const size = 1024
	r.both(t, slow, func(n *node) {
		require.Empty(n, n.active())
		if n.Rank == 0 {
			b := n.filled(size, n.stream(from), 0x42)
			n.write(to, b)
			require.Equal(n, []int{from.Index}, n.active())
			n.requireFilled(b, 0x42)
			return
		}
		b := n.read(n.stream(to))[0]
		n.requireFilled(b, 0x42)
		require.Equal(n, []int{to.Index}, n.active())
	})
}

// The device of an address is found without a current context, and while that of another device is
// current.
func deviceForPointer(t *testing.T) {
	direct.both(t, nil, func(n *node) {
		if n.Rank == 1 {
			return
		}
		for _, d := range []device.Device{gpu(0), gpu(1)} {
			b := n.alloc(1024, n.stream(d))
			require.Equal(n, d, n.deviceOf(ptr(b)))
			n.with(gpu(2), func(driver.Driver) { require.Equal(n, d, n.deviceOf(ptr(b)+1023)) })
		}
	})
}

func (n *node) deviceOf(p driver.Ptr) device.Device {
	d, err := n.kind.DeviceOf(p)
	require.NoError(n, err)
	return d
}
