package device_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// owned returns a buffer of the memory of b with a new owner, and a channel that is closed when the
// owner has become unreachable and was collected.
func owned(b device.Buffer) (device.Buffer, <-chan struct{}) {
	// An object without pointers could share its block, and its end, with others.
	owner, gone := new(*int), make(chan struct{})
	runtime.AddCleanup(owner, func(gone chan struct{}) { close(gone) }, gone)
	return b.WithOwner(owner), gone
}

func TestBufferKeepsOwner(t *testing.T) {
	for _, c := range []struct {
		name   string
		buffer device.Buffer
	}{
		{"host", device.Bytes(numbered(8))},
		{"segments", device.Host(split(numbered(8), 3)...)},
		{"device memory", device.On(device.Device{Kind: "npu"}, region(8), nil)},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, gone := owned(c.buffer)
			part := b.Slice(2, 5).WithStream(nil).Slice(0, 4)
			for range 3 {
				runtime.GC()
			}
			select {
			case <-gone:
				require.FailNow(t, "the owner went while a slice was there")
			default:
			}
			runtime.KeepAlive(&part)

			part = device.Buffer{}
			runtime.GC()
			<-gone
		})
	}
}

// A HostCopy that is not finished keeps the owners of both its buffers reachable, and a dropped one
// does not.
func TestHostCopyKeepsOwners(t *testing.T) {
	c, gone := ownedCopy(t)
	for range 3 {
		runtime.GC()
	}
	for _, ch := range gone {
		select {
		case <-ch:
			require.FailNow(t, "an owner went while its memory was being copied")
		default:
		}
	}
	require.Equal(t, 8, c.Step(100))
	c = device.HostCopy{}
	runtime.GC()
	<-gone[0]
	<-gone[1]
}

// ownedCopy returns a HostCopy of 8 bytes that holds the only references to its buffers, and two
// channels, which are closed when the owners of its destination and of its source are collected.
func ownedCopy(t *testing.T) (c device.HostCopy, gone [2]<-chan struct{}) {
	t.Helper()
	dst, dstGone := owned(device.Host(split(make([]byte, 8), 5)...))
	src, srcGone := owned(device.Bytes(numbered(8)))
	c, err := device.NewHostCopy(dst, src)
	require.NoError(t, err)
	return c, [2]<-chan struct{}{dstGone, srcGone}
}
