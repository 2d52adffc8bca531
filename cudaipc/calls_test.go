package cudaipc

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
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
	anyFunction = ""
	record      = "cuEventRecord"
	wait        = "cuStreamWaitEvent"
	copyMemory  = "cuMemcpyAsync"
	push        = "cuCtxPushCurrent_v2" // a pair with pop makes a context current
	pop         = "cuCtxPopCurrent_v2"
	query       = "cuEventQuery"
)

// A message takes few calls of the driver at both ends together, and none that waits; docs/cuda.md has the numbers. In
// addition cuda_basic polls each of four events until it is done.
func TestCallsOfAMessage(t *testing.T) {
	ipc := functionCalls{record: 2, wait: 2, copyMemory: 1, push: 3, pop: 3}
	staged := functionCalls{record: 2, wait: 2, copyMemory: 2, push: 2, pop: 2}
	t.Run("cuda_ipc/native=true", func(t *testing.T) { requireCalls(t, newFixture(t, Options{}).ipcPair(t, true), ipc, 0) })
	t.Run("cuda_ipc/native=false", func(t *testing.T) { requireCalls(t, newFixture(t, Options{}).ipcPair(t, false), staged, 0) })
	inDialects(t, func(t *testing.T, p *pair, host bool) {
		if host {
			requireCalls(t, p, functionCalls{record: 5, wait: 1, copyMemory: 2, push: 9, pop: 9}, 4)
		} else {
			requireCalls(t, p, functionCalls{record: 3, wait: 3, copyMemory: 1, push: 4, pop: 4}, 0)
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
		n := functionCalls{anyFunction: 0, query: 0}
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
	for name := range got {
		got[name] -= before[name]
	}
	polled := 0
	if polls > 0 {
		polled = got[query]
		require.GreaterOrEqual(t, polled, polls*messages)
	}
	want := functionCalls{anyFunction: 3 * polled, query: polled}
	for name, n := range each {
		want[name] = n * messages
		want[anyFunction] += n * messages
	}
	want[push] += polled
	want[pop] += polled
	require.Equal(t, want, got)
	require.Equal(t, blocking, p.blocking())
}
