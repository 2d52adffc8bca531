package cudaipc

import (
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ipcPair returns the two ends of a channel cuda_ipc, both in this process.
func (f *fixture) ipcPair(t *testing.T, native bool) *pair {
	f.set("CUSIM_OWN_HANDLES", "1")
	f.Cleanup(func() { f.set("CUSIM_OWN_HANDLES", "") })
	factory := NewIPC(f.Kind)
	near, far := connectedConns(t, factory.Connections(native))
	open := func(conns []transport.Conn, role channel.Role) channel.Channel {
		ch, err := factory.New(t.Context(), channel.Link{
			Native: native, Conns: conns, Remote: factory.DeviceDescriptors(),
			Peer: "peer", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
		}, role)
		require.NoError(t, err)
		t.Cleanup(func() { _ = ch.Close(nil) })
		return ch
	}
	return &pair{fixture: f, from: open(near, channel.RoleConnect), to: open(far, channel.RoleListen)}
}

// ipcEnds returns the ends of ipcPair in the native dialect.
func (f *fixture) ipcEnds(t *testing.T) (from, to channel.Channel) {
	p := f.ipcPair(t, true)
	return p.from, p.to
}

// functionCalls are numbers of calls by the functions of the driver.
type functionCalls map[string]int

// Functions of the driver.
const (
	allCalls   = ""
	recordCall = "cuEventRecord"
	waitCall   = "cuStreamWaitEvent"
	copyCall   = "cuMemcpyAsync"
	pushCall   = "cuCtxPushCurrent_v2" // a pair with pop makes a context current
	popCall    = "cuCtxPopCurrent_v2"
	queryCall  = "cuEventQuery"
)

// A message takes few calls of the driver at both ends together, and none that waits; docs/cuda.md has the numbers. In
// addition cuda_basic polls each of four events until it is done.
func TestCallsOfAMessage(t *testing.T) {
	ipc := functionCalls{recordCall: 2, waitCall: 2, copyCall: 1, pushCall: 3, popCall: 3}
	staged := functionCalls{recordCall: 2, waitCall: 2, copyCall: 2, pushCall: 2, popCall: 2}
	t.Run("cuda_ipc/native=true", func(t *testing.T) { requireCalls(t, newFixture(t, Options{}).ipcPair(t, true), ipc, 0) })
	t.Run("cuda_ipc/native=false", func(t *testing.T) { requireCalls(t, newFixture(t, Options{}).ipcPair(t, false), staged, 0) })
	inDialects(t, func(t *testing.T, p *pair, host bool) {
		if host {
			requireCalls(t, p, functionCalls{recordCall: 5, waitCall: 1, copyCall: 2, pushCall: 9, popCall: 9}, 4)
		} else {
			requireCalls(t, p, functionCalls{recordCall: 3, waitCall: 3, copyCall: 1, pushCall: 4, popCall: 4}, 0)
		}
	})
}

// awaitIdle waits until the ends of a channel cuda_basic poll no events.
func (p *pair) awaitIdle(t *testing.T) {
	for _, end := range []channel.Channel{p.from, p.to} {
		if e, ok := end.(*basicEnd); ok {
			require.Eventually(t, func() bool { return !e.running.Load() }, testwait.Limit, time.Millisecond)
		}
	}
}

// requireCalls requires that each message takes these calls of the driver and no others, apart from polls of events:
// at least polls, each of which is a query while a context is current.
func requireCalls(t *testing.T, p *pair, each functionCalls, polls int) {
	src, dst := p.alloc(1<<16, p.stream(p.zero)), p.alloc(1<<16, p.stream(p.second()))
	calls := func() functionCalls {
		p.awaitIdle(t)
		n := functionCalls{allCalls: 0, queryCall: 0}
		for name := range each {
			n[name] = 0
		}
		for name := range n {
			n[name] = p.simulator().Calls(name)
		}
		return n
	}
	for range slotCount { // the first messages open the memory, and use each slot of an outbox for the first time
		p.start(t, src, dst)()
	}
	before, blocking := calls(), p.blocking()
	const messages = 50
	for range messages {
		p.start(t, src, dst)()
	}
	got := calls()
	runtime.KeepAlive([]device.Buffer{src, dst}) // whose cleanups make calls too
	for name := range got {
		got[name] -= before[name]
	}
	polled := 0
	if polls > 0 {
		polled = got[queryCall]
		require.GreaterOrEqual(t, polled, polls*messages)
	}
	want := functionCalls{allCalls: 3 * polled, queryCall: polled}
	for name, n := range each {
		want[name] = n * messages
		want[allCalls] += n * messages
	}
	want[pushCall] += polled
	want[popCall] += polled
	require.Equal(t, want, got)
	require.Equal(t, blocking, p.blocking())
}
