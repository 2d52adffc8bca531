package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Who has more calls waiting than it agreed to, and reads no answers, loses the pipe: the
// answers that say so are counted by nothing else.
func TestRejectsBehindAnswers(t *testing.T) {
	group := insiders(t, 2, nil)
	c, err := group[0].peers.find("worker1").connect(t.Context())
	require.NoError(t, err)
	reject := func(id uint64) {
		r := &Request{conn: c, id: id}
		r.base, r.ctx = group[0].base, r
		c.reject(r, ErrOverloaded)
	}
	reject(1 << 40)
	require.NoError(t, c.pipe.Err())
	c.backlog.add(c.agent.limits.AnswerBytes, false)
	reject(1<<40 + 1)
	require.ErrorIs(t, c.pipe.Err(), ErrOverloaded)
}

// What is short waits for no slot behind answers that wait: handlers that have all of
// them may be waiting for it.
func TestShortRequestsWaitForNoSlot(t *testing.T) {
	b := backlog{most: 1 << 20}
	short, long := &Request{handler: entry{short: true}}, &Request{}
	require.False(t, b.hold(short), "no answer waits")
	b.add(10, true)
	require.True(t, b.hold(long))
	require.True(t, b.hold(short))
	require.Nil(t, b.next(true), "an answer waits")
	b.remove(10, true)
	require.Same(t, short, b.next(true))
	require.Nil(t, b.next(true))
	require.True(t, b.holds(false))
	require.Same(t, long, b.next(false))
	require.False(t, b.holds(false))
}

// A request that has memory for large ones begins although small answers wait, unless
// they have too many bytes.
func TestLargeRequestsWaitForBytesAlone(t *testing.T) {
	b := backlog{most: 3 * answerOverhead}
	large := func() *Request { return &Request{large: 1} }
	small := &Request{}
	b.add(0, true)
	require.True(t, b.hold(small))
	require.False(t, b.hold(large()))
	b.add(2*answerOverhead, false)
	held := large()
	require.True(t, b.hold(held))
	require.Nil(t, b.next(false))
	b.remove(2*answerOverhead, false)
	require.Same(t, held, b.next(false), "before the other, which came first")
	require.Nil(t, b.next(false))
	b.remove(0, true)
	require.Same(t, small, b.next(false))
	require.Zero(t, b.bytes.Load())
}
