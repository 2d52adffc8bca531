package cudaipc

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// ipcEnds returns the two ends of a channel in the native dialect, both in this process.
func (f *fixture) ipcEnds(t *testing.T) (from, to channel.Channel) {
	f.set("CUSIM_OWN_HANDLES", "1")
	f.Cleanup(func() { f.set("CUSIM_OWN_HANDLES", "") })
	near, far := channeltest.Over(mem.New(nil), "")(t)
	open := func(c transport.Conn, role channel.Role) channel.Channel {
		ch, err := NewIPC(f.Kind).New(t.Context(), channel.Link{
			Native: true, Conns: []transport.Conn{c}, Remote: NewIPC(f.Kind).DeviceDescriptors(),
			Peer: "peer", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
		}, role)
		require.NoError(t, err)
		t.Cleanup(func() { _ = ch.Close(nil) })
		return ch
	}
	return open(near, channel.RoleConnect), open(far, channel.RoleListen)
}

// A message takes few calls of the driver at both ends, and none that waits; docs/cuda.md has the
// numbers.
func TestIPCCallsOfAMessage(t *testing.T) {
	f := newFixture(t, Options{})
	from, to := f.ipcEnds(t)
	src, dst := f.alloc(1<<20, f.stream(f.zero)), f.alloc(1<<20, f.stream(f.second()))
	exchange := func(id uint64) {
		sent, received := make(chan error, 1), make(chan error, 1)
		to.Recv(id, dst, func(err error) { received <- err })
		from.Send(id, src, func(err error) { sent <- err })
		require.NoError(t, <-sent)
		require.NoError(t, <-received)
	}
	exchange(0) // opens the memory
	calls := map[string]int{
		"cuEventRecord": 2, "cuStreamWaitEvent": 2, "cuMemcpyAsync": 1, // for the order, and the copy
		"cuCtxPushCurrent_v2": 3, "cuCtxPopCurrent_v2": 3, // at the description, the copy and its confirmation
		"cuEventCreate": 0, "cuIpcGetMemHandle": 0, "cuIpcOpenMemHandle_v2": 0, "cuIpcOpenEventHandle": 0,
		"cuIpcGetEventHandle": 0, "cuPointerGetAttribute": 0, "cuEventQuery": 0, "cuMemGetAddressRange_v2": 0,
	}
	before, blocking := map[string]int{}, f.blocking()
	for name := range calls {
		before[name] = f.simulator().Calls(name)
	}
	const messages = 50
	for id := range uint64(messages) {
		exchange(1 + id)
	}
	for name, each := range calls {
		require.Equal(t, each*messages, f.simulator().Calls(name)-before[name], name)
	}
	require.Equal(t, blocking, f.blocking())
}
