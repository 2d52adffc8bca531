package ringsession_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ringBudget is a transport.Budget of a fixed size.
type ringBudget struct{ *budget.Budget }

func (b ringBudget) Acquire(n int) bool { return n <= b.Size() && b.TryAcquire(n) }

// growth is the number of bytes that a ring acquires from the budget.
var growth = ringsession.ChargedRegion

// streamsWithBudget opens a message stream and a bulk stream, which both have large rings, from a
// client whose budget has that many bytes to a server whose budget is empty. It returns the
// client's budget, the client, and the streams at the client (out) and at the server (in).
func streamsWithBudget(t *testing.T, bytes int) (b ringBudget, client *ringsession.Session, out, in [2]transport.Stream) {
	t.Helper()
	b = ringBudget{budget.New(bytes)}
	others := ringBudget{budget.New(0)}
	t.Cleanup(func() { require.Zero(t, others.InUse(), "the reader's budget is not charged") })
	client, server := sessionsOf(t,
		transport.SessionConfig{MaxStreams: 2, Budget: b}, transport.SessionConfig{MaxStreams: 2, Budget: others})
	out[0], in[0] = open(t, client, server)
	var err error
	out[1], err = client.OpenBulk()
	require.NoError(t, err)
	in[1], err = server.Accept(t.Context())
	require.NoError(t, err)
	return b, client, out, in
}

// fillAndDrain writes to out until the ring is full, and reads all bytes from in. at is the number
// of the first byte. It returns how many bytes the ring held, and the number of the next byte.
func fillAndDrain(t *testing.T, out, in transport.Stream, at int) (size, next int) {
	t.Helper()
	size = fill(t, out, at, moreThanRing)
	drain(t, in, at, size)
	return size, at + size
}

// fillTwice calls fillAndDrain twice and returns the results of the second call. The first call
// makes the ring grow if it can grow.
func fillTwice(t *testing.T, out, in transport.Stream, at int) (size, next int) {
	t.Helper()
	_, at = fillAndDrain(t, out, in, at)
	return fillAndDrain(t, out, in, at)
}

// A ring grows to its last region only if the writer's budget has enough for it, and tries again
// after more traffic. The budget is released when the ring shrinks.
func TestRingsGrowWithinBudget(t *testing.T) {
	b, client, out, in := streamsWithBudget(t, growth)
	at := grow(t, out[0], in[0], 0)
	require.Equal(t, growth, b.InUse())

	bulk := passTraffic(t, out[1], in[1], 0)
	size, bulk := fillAndDrain(t, out[1], in[1], bulk)
	require.Equal(t, ringsession.UnchargedRegion, size)

	client.ShrinkIdle()
	require.Equal(t, 1, fill(t, out[1], bulk, 1)) // only the other ring is idle
	drain(t, in[1], bulk, 1)
	client.ShrinkIdle()
	require.Zero(t, b.InUse())
	bulk++
	for k := range ringsession.ChargedTraffic / ringsession.UnchargedRegion {
		require.Zero(t, b.InUse(), "too little traffic since the last attempt, %d", k)
		size = fill(t, out[1], bulk, ringsession.UnchargedRegion+1)
		drain(t, in[1], bulk, size)
		bulk += size
	}
	require.Equal(t, ringsession.UnchargedRegion+1, size)
	require.Equal(t, growth, b.InUse())

	at = passTraffic(t, out[0], in[0], at)
	size, _ = fillTwice(t, out[0], in[0], at)
	require.Equal(t, ringsession.UnchargedRegion, size)
}

// The budget is released when a stream or its session is closed.
func TestBudgetOfRingsIsReleased(t *testing.T) {
	b, client, out, in := streamsWithBudget(t, 3*growth)
	grow(t, out[0], in[0], 0)
	grow(t, out[1], in[1], 0)
	require.Equal(t, 2*growth, b.InUse())
	require.NoError(t, out[1].Close())
	require.Equal(t, growth, b.InUse())
	require.NoError(t, out[1].Close())
	require.NoError(t, client.Close())
	require.Zero(t, b.InUse())
}

// A ring acquires nothing from a budget that has less than its last region.
func TestBudgetTooSmallForRing(t *testing.T) {
	b, _, out, in := streamsWithBudget(t, growth-1)
	at := passTraffic(t, out[0], in[0], 0)
	size, _ := fillTwice(t, out[0], in[0], at)
	require.Equal(t, ringsession.UnchargedRegion, size)
	require.Zero(t, b.InUse())
}
