package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// A peer that exceeds the limits on calls and does not read replies loses its pipe. A peer that
// exceeds the limits only gets a rejection.
func TestOverloadedPeerThatDoesNotRead(t *testing.T) {
	group := joinInternal(t, 2, nil)
	c, err := group[0].peers.find("worker1").connect(t.Context())
	require.NoError(t, err)
	reject := func(id uint64) {
		r := &Request{conn: c, id: id}
		r.parent, r.ctx = group[0].base, r
		c.rejectOverload(r, ErrOverloaded)
	}
	reject(1 << 40)
	require.NoError(t, c.pipe.Err())
	c.backlog.add(c.agent.limits.AnswerBytes, false)
	reject(1<<40 + 1)
	require.ErrorIs(t, c.pipe.Err(), ErrOverloaded)
}

// A short request and other requests in the backlog start independently of each other, so that the
// short one needs no handler slot.
func TestQueuedShortRequestsNeedNoSlot(t *testing.T) {
	b := backlog{maxBytes: 1 << 20}
	short, long := &Request{handler: handlerEntry{short: true}}, &Request{}
	require.False(t, b.enqueue(short), "no reply is unsent")
	b.add(10, true)
	require.True(t, b.enqueue(long))
	require.True(t, b.enqueue(short))
	require.Nil(t, b.next(true), "a reply is unsent")
	b.remove(10, true)
	require.Same(t, short, b.next(true))
	require.Nil(t, b.next(true))
	require.True(t, b.hasReady(false))
	require.Same(t, long, b.next(false))
	require.False(t, b.hasReady(false))
}

// A request that has memory for large requests starts in spite of small unsent replies, but not
// while the bytes of all unsent replies reach the limit.
func TestLargeRequestsPassSmallReplies(t *testing.T) {
	b := backlog{maxBytes: 3 * replyOverhead}
	large := func() *Request { return &Request{largeCharge: 1} }
	small := &Request{}
	b.add(0, true)
	require.True(t, b.enqueue(small))
	require.False(t, b.enqueue(large()))
	b.add(2*replyOverhead, false)
	waiting := large()
	require.True(t, b.enqueue(waiting))
	require.Nil(t, b.next(false))
	b.remove(2*replyOverhead, false)
	require.Same(t, waiting, b.next(false), "before the other one, which was queued first")
	require.Nil(t, b.next(false))
	b.remove(0, true)
	require.Same(t, small, b.next(false))
	require.Zero(t, b.bytes.Load())
}

// If a cancellation is handled before its request is registered, the context of the request has
// ended, with the cause of the cancellation, when register returns.
func TestCancelBeforeRegistration(t *testing.T) {
	c := &conn{agent: &Agent{}, serving: map[uint64]*Request{}}
	registered := func(id uint64) *Request {
		r := &Request{conn: c, id: id}
		r.parent, r.ctx = t.Context(), r
		require.NoError(t, c.register(r))
		return r
	}
	enough := errors.New("enough")
	c.earlyCancels.add(7, enough)
	require.NoError(t, registered(6).Err())
	r := registered(7)
	require.ErrorIs(t, r.Err(), context.Canceled)
	require.Equal(t, enough, context.Cause(r))
}

// Of many cancellations of unregistered requests only the latest are remembered, each until it is
// removed.
func TestEarlyCancelsAreBounded(t *testing.T) {
	var e earlyCancels
	enough := errors.New("enough")
	for id := range uint64(100) {
		e.add(id+1, enough)
	}
	require.NoError(t, e.remove(1))
	require.Equal(t, enough, e.remove(100))
	require.NoError(t, e.remove(100))
	require.NoError(t, e.remove(0))
}

// opTask.short returns true for operators whose tensor arguments are small and have elements, and
// false for large arguments, for lists, and for tensors without elements, with which the result can
// be of any size.
func TestShortOperators(t *testing.T) {
	of := func(shape ...int) any {
		x, err := tensor.Zeros(tensor.F32, shape...)
		require.NoError(t, err)
		return x
	}
	vast, err := of(1).(*tensor.Tensor).Expand(1 << 30)
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		args  []any
		short bool
	}{
		{"aten::add", []any{of(2, 2), of(2, 2)}, true},
		{"aten::add", []any{of(128, 1), of(1, 128)}, true},
		{"aten::mm", []any{of(16, 8), of(8, 16)}, true},
		{"aten::sum", []any{of(16)}, true},
		{"aten::mm", []any{of(16384, 0), of(0, 16384)}, false},
		{"aten::bmm", []any{of(1, 16384, 0), of(1, 0, 16384)}, false},
		{"aten::matmul", []any{of(16384, 0), of(0, 16384)}, false},
		{"aten::linear", []any{of(16384, 0), of(16384, 0)}, false},
		{"aten::mv", []any{of(1<<20, 0), of(0)}, false},
		{"aten::sum", []any{of(1<<20, 0), []int64{1}}, false},
		{"aten::neg", []any{vast}, false},
		{"aten::add", []any{of(200), of(200)}, false},
		{"aten::expand", []any{of(1), []int64{1 << 30}}, false},
		{"aten::zeros", []any{[]int64{2}}, false},
	} {
		op, args, err := aten.Default().Resolve(c.name, c.args, nil)
		require.NoError(t, err, c.name)
		require.Equal(t, c.short, (&opTask{op: op, args: args}).Short(), "%s %v", c.name, op.Schema)
	}
}
