package ringnet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// purse is a budget of so many bytes and no more.
type purse struct{ *budget.Budget }

func (p purse) Acquire(n int) bool { return n <= p.Size() && p.TryAcquire(n) }

// growth is the region that the budget pays for.
var growth = ringnet.LargeRegion

// within makes two ends of which the writers may grow by so much, each for itself. The
// sessions have a stream of messages and one for bulk, with a large ring each.
func within(t *testing.T, bytes int) (p purse, client *ringnet.Session, out, in [2]transport.Stream) {
	t.Helper()
	p = purse{budget.New(bytes)}
	others := purse{budget.New(0)}
	t.Cleanup(func() { require.Zero(t, others.InUse(), "the reader pays for nothing") })
	client, server := sessionsOf(t,
		transport.SessionConfig{Streams: 2, Budget: p}, transport.SessionConfig{Streams: 2, Budget: others})
	out[0], in[0] = open(t, client, server)
	var err error
	out[1], err = client.OpenBulk()
	require.NoError(t, err)
	in[1], err = server.Accept(t.Context())
	require.NoError(t, err)
	return p, client, out, in
}

// once fills a ring and empties it, and returns how many bytes it holds, and from where to
// go on.
func once(t *testing.T, out, in transport.Stream, at int) (size, next int) {
	t.Helper()
	size = fill(t, out, at, most)
	drain(t, in, at, size)
	return size, at + size
}

// full does so twice: a ring that may grow has grown by then.
func full(t *testing.T, out, in transport.Stream, at int) (size, next int) {
	t.Helper()
	_, at = once(t, out, in, at)
	return once(t, out, in, at)
}

// A ring grows only if the budget of its writer has room for that, and asks again when
// more has gone through it. What it had is given back when it shrinks.
func TestRingsGrowWithinABudget(t *testing.T) {
	p, client, out, in := within(t, growth)
	at := grow(t, out[0], in[0], 0)
	require.Equal(t, growth, p.InUse())

	bulk := pass(t, out[1], in[1], 0)
	size, bulk := once(t, out[1], in[1], bulk)
	require.Equal(t, ringnet.UnpaidRegion, size)

	client.Reduce()
	require.Equal(t, 1, fill(t, out[1], bulk, 1)) // which is in use
	drain(t, in[1], bulk, 1)
	client.Reduce()
	require.Zero(t, p.InUse())
	bulk++
	for k := range ringnet.MuchTraffic / ringnet.UnpaidRegion {
		require.Zero(t, p.InUse(), "too little has gone through it since, %d", k)
		size = fill(t, out[1], bulk, ringnet.UnpaidRegion+1)
		drain(t, in[1], bulk, size)
		bulk += size
	}
	require.Equal(t, ringnet.UnpaidRegion+1, size)
	require.Equal(t, growth, p.InUse())

	at = pass(t, out[0], in[0], at)
	size, _ = full(t, out[0], in[0], at)
	require.Equal(t, ringnet.UnpaidRegion, size)
}

// What rings have of a budget is given back with their streams, or with the session.
func TestBudgetOfRingsIsGivenBack(t *testing.T) {
	p, client, out, in := within(t, 3*growth)
	grow(t, out[0], in[0], 0)
	grow(t, out[1], in[1], 0)
	require.Equal(t, 2*growth, p.InUse())
	require.NoError(t, out[1].Close())
	require.Equal(t, growth, p.InUse())
	require.NoError(t, out[1].Close())
	require.NoError(t, client.Close())
	require.Zero(t, p.InUse())
}

// Nothing is taken of a budget that has less than a ring grows by.
func TestBudgetTooSmallForARing(t *testing.T) {
	p, _, out, in := within(t, growth-1)
	at := pass(t, out[0], in[0], 0)
	size, _ := full(t, out[0], in[0], at)
	require.Equal(t, ringnet.UnpaidRegion, size)
	require.Zero(t, p.InUse())
}
