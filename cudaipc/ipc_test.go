package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// ownIPC makes channels between two ends in one process, for which the simulator maps handles of its own
// process.
type ownIPC struct{ *IPC }

// CanCommunicate reports whether the descriptors are those of one GPU.
func (ownIPC) CanCommunicate(local, remote string) bool { return local == remote }

// ipcBackend returns the conformance suite's backend for cuda_ipc on f.
func (f *fixture) ipcBackend(connect channeltest.Connect) channeltest.Backend {
	f.set("CUSIM_OWN_HANDLES", "1")
	f.Cleanup(func() { f.set("CUSIM_OWN_HANDLES", "") })
	return channeltest.Backend{
		Name:              IPCName,
		New:               func(*testing.T) channel.Factory { return ownIPC{NewIPC(f.Kind)} },
		Connect:           connect,
		Kinds:             f.kinds(),
		Strict:            f.strict(),
		Hold:              func(s device.Stream) func() { return f.hold(s.(*Stream)) },
		TrustsCompletions: true,
	}
}

// Both ends are in one process here; those of cudaipc/samehost are in two.
func TestParityOfIPC(t *testing.T) {
	f := newFixture(t, Options{})
	channeltest.Run(t, f.ipcBackend(channeltest.Over(mem.New(nil), "")))
}

// A process cannot map its own memory.
func TestParity(t *testing.T) {
	t.Run("tensorpipe/channel.CudaIpcCannotCommunicateInSameProcess", func(t *testing.T) {
		f := newFixture(t, Options{})
		c := NewIPC(f.Kind)
		for _, text := range c.DeviceDescriptors() {
			require.False(t, c.CanCommunicate(text, text))
		}
		require.Len(t, c.DeviceDescriptors(), len(f.Devices()))
	})
}

// Obstacle names what keeps two GPUs from exchanging tensors.
func TestObstacle(t *testing.T) {
	f := newFixture(t, Options{})
	c := NewIPC(f.Kind)
	text := c.DeviceDescriptors()[f.zero]
	own, ok := decodePlace(text)
	require.True(t, ok)
	peer := own
	peer.pid++
	require.Empty(t, c.Obstacle(text, peer.encode()))
	elsewhere, unknown := peer, peer
	elsewhere.boot, unknown.uuid = "another", "0123"
	for remote, want := range map[string]string{
		"text":             "has another format",
		text:               "in one process",
		elsewhere.encode(): "on another machine",
		unknown.encode():   "does not use the peer's GPU 0123",
	} {
		require.Contains(t, c.Obstacle(text, remote), want)
	}
	require.Contains(t, c.Obstacle(unknown.encode(), text), "does not use a GPU 0123")

	second, ok := decodePlace(c.DeviceDescriptors()[f.second()])
	require.True(t, ok)
	second.pid++
	require.Empty(t, c.Obstacle(text, second.encode()))
	f.set("CUSIM_NO_P2P", "1")
	defer f.set("CUSIM_NO_P2P", "")
	require.Equal(t, "cuda:0 and the peer's GPU, here cuda:1, cannot access each other's memory", c.Obstacle(text, second.encode()))
}
