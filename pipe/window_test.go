package pipe

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	waiting "github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// windowContext returns a context for native pipes over network, whose Limits.ContextWindowBytes is
// windowBytes; 0 means the default. It is closed at the end of the test.
func windowContext(t *testing.T, network *mem.Network, windowBytes int) *Context {
	t.Helper()
	return windowContextOver(t, TransportEntry{Name: "mem", Transport: mem.New(network, mem.WithBuffer(4<<20))}, windowBytes)
}

func windowContextOver(t *testing.T, over TransportEntry, windowBytes int) *Context {
	t.Helper()
	c, err := New(Options{
		Dialect:    DialectNative,
		Transports: []TransportEntry{over},
		Channels:   []ChannelEntry{{Name: "basic", Factory: basic.New()}},
		Limits:     Limits{ContextWindowBytes: windowBytes, PipeBytesInFlight: 16 << 20},
	})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// windowPipes opens count pipes from the context from, which dials, to the context to. clients[i]
// and servers[i] are the ends of one pipe.
func windowPipes(t *testing.T, from, to *Context, count int) (clients, servers []*Pipe) {
	t.Helper()
	l, err := to.Listen(t.Context(), from.opts.Transports[0].Name+"://")
	require.NoError(t, err)
	for range count {
		p, err := from.Dial(t.Context(), l.URLs()[0])
		require.NoError(t, err)
		clients = append(clients, p)
		p, err = l.Accept(t.Context())
		require.NoError(t, err)
		servers = append(servers, p)
	}
	return clients, servers
}

// windowMessage returns a new message with one inline payload of 50,000 bytes.
func windowMessage() *Message {
	return &Message{Payloads: []Payload{{Data: bytes.Repeat([]byte("m"), 50_000)}}}
}

// take receives and reads count messages of windowMessage from p.
func take(t *testing.T, p *Pipe, count int) {
	t.Helper()
	for range count {
		in, err := p.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Read(t.Context(), Allocation{Payloads: [][]byte{make([]byte, 50_000)}}))
		in.Release()
	}
}

// unread returns how many bytes of messages have been sent and not read on all pipes together, in
// the direction from from[i] to to[i], which are the two ends of one pipe.
func unread(from, to []*Pipe) (sum int) {
	for i := range from {
		s := from[i].Stats()
		sum += int(s.Sent.Bytes-to[i].Stats().Received.Bytes) - s.BytesInFlight
	}
	return sum
}

// TestWindowsOfAllPipesShareABudget checks that the bytes by which the windows of all pipes of a
// context grow stay within ContextWindowBytes, with any number of pipes, and so do the bytes that
// are sent and not read. All of the budget is released once everything has been read.
func TestWindowsOfAllPipesShareABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 150
		pipes, bound := race.Pick(50, 20), race.Pick(5<<20, 2<<20)
		network := mem.NewNetwork()
		a, b := windowContext(t, network, 0), windowContext(t, network, bound)
		clients, servers := windowPipes(t, a, b, pipes)
		for _, p := range clients {
			for range each {
				p.WriteAsync(context.Background(), windowMessage())
			}
		}
		synctest.Wait()
		require.LessOrEqual(t, b.windows.InUse(), bound)

		for _, p := range servers {
			take(t, p, each/2)
			require.LessOrEqual(t, b.windows.InUse(), bound)
		}
		synctest.Wait()
		require.Greater(t, b.windows.InUse(), bound-256<<10, "and the readers pause")
		require.LessOrEqual(t, b.windows.InUse(), bound)
		perPipe := 256<<10 + b.limits.ReadAheadBytes + 2*len(windowMessage().Payloads[0].Data)
		require.LessOrEqual(t, unread(clients, servers), bound+pipes*perPipe)

		for _, p := range servers {
			take(t, p, each-each/2)
		}
		require.LessOrEqual(t, b.windows.InUse(), bound)
		for i, p := range servers {
			if i%2 == 0 {
				p.Abort(nil)
			} else {
				clients[i].Abort(nil)
			}
		}
		b.Close()
		require.Zero(t, b.windows.InUse())
	})
}

// TestRingsOfAllPipesShareABudget checks that over shared memory the growth of the rings to which
// an end writes is charged to its ContextWindowBytes: with a budget for one ring, one of three
// rings grows. All of the budget is released when the context is closed.
func TestRingsOfAllPipesShareABudget(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip("the transport does not work here: ", err)
	}
	const grows, each = 2 << 20, 100
	shared := func(bound int) *Context {
		return windowContextOver(t, TransportEntry{Name: shm.Name, Transport: shm.New()}, bound)
	}
	a, b := shared(grows), shared(1)
	clients, servers := windowPipes(t, a, b, 3)
	for _, p := range clients {
		for range 2 * each {
			p.WriteAsync(context.Background(), windowMessage())
		}
	}
	for _, p := range servers {
		take(t, p, each)
	}
	require.Eventually(t, func() bool { return a.windows.InUse() == grows }, waiting.Limit, time.Millisecond)
	for _, p := range servers {
		take(t, p, each)
	}
	require.LessOrEqual(t, a.windows.InUse(), grows)
	require.Zero(t, b.windows.InUse())
	for _, p := range clients {
		p.Abort(nil)
	}
	a.Close()
	require.Zero(t, a.windows.InUse())
}

func TestWindowBudgetIsNeverExceeded(t *testing.T) {
	b := windowBudget{budget.New(10)}
	require.False(t, b.Acquire(11), "not even alone")
	require.True(t, b.Acquire(10))
	require.False(t, b.Acquire(1))
	b.Release(10)
	require.True(t, b.Acquire(1))
}
