package pipe_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestFullBudgetBlocksTheWriter checks that a writer blocks when the budget of its pipe is full,
// that no more bytes than the budget are in flight, and that all messages arrive once the peer
// reads.
func TestFullBudgetBlocksTheWriter(t *testing.T) {
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(path.name, func(t *testing.T) { fullBudgetBlocksTheWriter(t, path) })
	}
}

func fullBudgetBlocksTheWriter(t *testing.T, path path) {
	synctest.Test(t, func(t *testing.T) {
		const budget, count = 1 << 20, 2000
		client, server := connect(t, path, func(o *pipe.Options) { o.Limits.PipeBytesInFlight = budget })
		var accepted atomic.Int64
		go func() {
			for i := range count {
				client.WriteAsync(context.Background(), message(i, []int{1000}, []int{3000}, device.CPU()))
				accepted.Add(1)
			}
		}()
		synctest.Wait()
		blockedAt := accepted.Load()
		require.Less(t, blockedAt, int64(count))
		require.LessOrEqual(t, client.Stats().BytesInFlight, budget)
		require.Greater(t, client.Stats().BytesInFlight, budget-2*5000)

		for i := range count {
			expect(t, server, message(i, []int{1000}, []int{3000}, device.CPU()))
		}
		synctest.Wait()
		require.Equal(t, int64(count), accepted.Load())
		require.Zero(t, client.Stats().BytesInFlight)
		require.Equal(t, uint64(count), client.Stats().Sent.Messages)
	})
}

// TestDeadlineDuringTheWaitForTheBudget checks that a message whose deadline passes while its
// writer waits for the budget is not sent, and that its Write fails with context.DeadlineExceeded.
func TestDeadlineDuringTheWaitForTheBudget(t *testing.T) {
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(path.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := connect(t, path, func(o *pipe.Options) { o.Limits.PipeBytesInFlight = 1 << 20 })
				large := message(1, nil, []int{1 << 20}, device.Device{})
				first := client.WriteAsync(t.Context(), large)
				late := message(2, []int{10}, nil)
				late.Deadline = time.Now().Add(time.Second)
				result := make(chan error, 1)
				go func() { result <- client.Write(context.Background(), late) }()
				synctest.Wait()
				<-time.NewTimer(time.Minute).C // in virtual time
				require.Empty(t, result, "it waits")
				expect(t, server, large)
				require.NoError(t, first.Wait(t.Context()))
				require.ErrorIs(t, <-result, context.DeadlineExceeded)
				write(t, client, message(3, []int{10}, nil))
				expect(t, server, message(3, []int{10}, nil))
				synctest.Wait()
				require.Zero(t, client.Stats().BytesInFlight)
			})
		})
	}
}

// TestContextBudgetIsShared checks that a writer waits if another pipe of the context has taken the
// context's budget, and continues when that pipe fails, which releases the bytes.
func TestContextBudgetIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := memPath()
		a := newContext(t, path, func(o *pipe.Options) { o.Limits.ContextBytesInFlight = 4 << 20 })
		b := newContext(t, path)
		one, _ := connectContexts(t, a, b, path.url)
		two, server := connectContexts(t, a, b, path.url)
		large := one.WriteAsync(t.Context(), message(1, []int{8 << 20}, nil)) // larger than the budget: it counts as half of it
		other := one.WriteAsync(t.Context(), message(1, []int{8 << 20}, nil))
		waiting := make(chan *pipe.WriteOp, 1)
		go func() { waiting <- two.WriteAsync(context.Background(), message(2, []int{10}, nil)) }()
		synctest.Wait()
		require.Empty(t, waiting)
		one.Abort(pipe.ErrClosed)
		require.Error(t, large.Wait(t.Context()))
		require.Error(t, other.Wait(t.Context()))
		op := <-waiting
		expect(t, server, message(2, []int{10}, nil))
		require.NoError(t, op.Wait(t.Context()))
		synctest.Wait()
		require.Zero(t, a.Stats().BytesInFlight)
	})
}

func TestWaitForBudgetIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := connect(t, memPath(), func(o *pipe.Options) { o.Limits.PipeBytesInFlight = 1 << 20 })
		client.WriteAsync(t.Context(), message(1, []int{4 << 20}, nil))
		ctx, cancel := context.WithCancelCause(t.Context())
		failed := make(chan error, 1)
		go func() { failed <- client.Write(ctx, message(2, nil, nil)) }()
		synctest.Wait()
		cancel(errEnough)
		err := <-failed
		require.ErrorIs(t, err, errEnough)
		require.NotErrorIs(t, err, pipe.ErrCancelled)
		require.NoError(t, client.Err())
		client.Abort(pipe.ErrClosed)
	})
}

// TestReadAheadIsBounded checks that a pipe reads no more messages ahead than its limits allow if
// the application reads none, and that all of them arrive later.
func TestReadAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, memPath(), func(o *pipe.Options) {
			o.Limits.MaxReadAheadMessages = 5
			o.Limits.ReadAheadBytes = 10_000
		})
		go func() {
			for i := range 1000 {
				client.WriteAsync(context.Background(), message(i, []int{3000}, nil))
			}
		}()
		synctest.Wait()
		require.LessOrEqual(t, server.Stats().BytesReadAhead, 10_000)
		require.Greater(t, server.Stats().BytesReadAhead, 3000)
		for i := range 1000 {
			expect(t, server, message(i, []int{3000}, nil))
		}
		synctest.Wait()
		require.Zero(t, server.Stats().BytesReadAhead)
	})
}

func TestWriteLimits(t *testing.T) {
	client, server := connect(t, memPath(), func(o *pipe.Options) {
		o.Limits = pipe.Limits{DescriptorBytes: 1000, MaxPayloads: 2, MaxTensors: 2, PayloadBytes: 100, TensorBytes: 200, MessageBytes: 350}
	})
	for name, m := range map[string]*pipe.Message{
		"payloads":     message(1, []int{1, 1, 1}, nil),
		"tensors":      message(1, nil, []int{1, 1, 1}),
		"payload size": message(1, []int{101}, nil),
		"tensor size":  message(1, nil, []int{201}),
		"sum":          message(1, []int{100}, []int{200, 51}),
		"metadata":     {Metadata: make([]byte, 1001)},
	} {
		err := client.Write(testContext(t), m)
		require.ErrorIs(t, err, pipe.ErrMessage, name)
		require.ErrorIs(t, err, pipe.ErrLimit, name)
	}
	require.ErrorIs(t, client.Write(testContext(t), nil), pipe.ErrMessage)
	npu := message(1, nil, []int{1}, device.Device{Kind: "npu"})
	err := client.Write(testContext(t), npu)
	require.ErrorIs(t, err, pipe.ErrMessage)
	require.ErrorIs(t, err, pipe.ErrNoChannel)

	m := message(2, []int{100, 0}, []int{200, 0}, device.CPU(), device.CPU())
	write(t, client, m)
	expect(t, server, m)
}

func TestAllocationMustFit(t *testing.T) {
	client, server := connect(t, memPath())
	m := message(1, []int{10}, []int{20, 30}, device.CPU())
	op := client.WriteAsync(testContext(t), m)
	in, err := server.Next(testContext(t))
	require.NoError(t, err)
	fits := func() pipe.Allocation { return pipe.NewAllocation(in.Descriptor()) }
	for name, change := range map[string]func(*pipe.Allocation){
		"no payload":       func(a *pipe.Allocation) { a.Payloads = nil },
		"a tensor less":    func(a *pipe.Allocation) { a.Tensors = a.Tensors[:1] },
		"payload too long": func(a *pipe.Allocation) { a.Payloads[0] = make([]byte, 11) },
		"tensor too short": func(a *pipe.Allocation) { a.Tensors[1] = device.Bytes(make([]byte, 29)) },
		"zero buffer":      func(a *pipe.Allocation) { a.Tensors[0] = device.Buffer{} },
	} {
		a := fits()
		change(&a)
		require.ErrorIs(t, in.Read(testContext(t), a), pipe.ErrAllocation, name)
	}
	same(t, m, in.Descriptor(), read(t, in))
	require.NoError(t, op.Wait(testContext(t)))
	require.ErrorIs(t, in.Read(testContext(t), fits()), pipe.ErrAlreadyRead)
	require.ErrorIs(t, in.Discard(testContext(t)), pipe.ErrAlreadyRead)
}

// TestDiscard checks on every path that messages can be discarded, also large ones whose target is
// left to the receiver, and that the message after them arrives.
func TestDiscard(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		ops := []*pipe.WriteOp{
			client.WriteAsync(testContext(t), message(1, []int{5 << 20, 0, 7}, []int{race.Pick(40<<20, 10<<20), 0, 3 << 20})),
			client.WriteAsync(testContext(t), message(2, []int{5}, []int{6}, device.CPU())),
			client.WriteAsync(testContext(t), message(3, []int{7}, []int{8})),
		}
		for range 2 {
			in, err := server.Next(testContext(t))
			require.NoError(t, err)
			require.NoError(t, in.Discard(testContext(t)))
		}
		expect(t, server, message(3, []int{7}, []int{8}))
		for _, op := range ops {
			require.NoError(t, op.Wait(testContext(t)))
		}
	})
}

func TestStatsCount(t *testing.T) {
	client, server := connect(t, memPath())
	write(t, client, message(1, []int{10, 20}, []int{300, 0, 4000}, device.CPU(), device.CPU(), device.CPU()))
	expect(t, server, message(1, []int{10, 20}, []int{300, 0, 4000}, device.CPU(), device.CPU(), device.CPU()))
	require.Equal(t, pipe.Traffic{Messages: 1, Bytes: 4330}, client.Stats().Sent)
	require.Equal(t, pipe.Traffic{Messages: 1, Bytes: 4330}, server.Stats().Received)
	require.Equal(t, []pipe.ChannelStats{{Name: "basic", Sent: pipe.Traffic{Messages: 2, Bytes: 4300}}}, client.Stats().Channels)
	require.Equal(t, []pipe.ChannelStats{{Name: "basic", Received: pipe.Traffic{Messages: 2, Bytes: 4300}}}, server.Stats().Channels)
	require.Zero(t, client.Stats().Received)
}

// TestTooManyPartsForDialect checks that a message with 65537 payloads is rejected with ErrLimit in
// the native dialect and sent in the compatible one, which has no such bound, and that the pipe
// works afterwards.
func TestTooManyPartsForDialect(t *testing.T) {
	many := func(o *pipe.Options) { o.Limits.MaxPayloads = 1 << 17 }
	for _, p := range []path{memPath(), nativePath()} {
		t.Run(p.name, func(t *testing.T) {
			client, server := connect(t, p, many)
			m := &pipe.Message{Payloads: make([]pipe.Payload, 1<<16+1)}
			op := client.WriteAsync(testContext(t), m)
			if p.dialect == pipe.DialectNative {
				require.ErrorIs(t, op.Err(), pipe.ErrLimit)
			} else {
				in, err := server.Next(testContext(t))
				require.NoError(t, err)
				require.Len(t, in.Descriptor().Payloads, len(m.Payloads))
				require.NoError(t, in.Discard(testContext(t)))
				require.NoError(t, op.Wait(testContext(t)))
			}
			exchange(t, client, server, message(1, []int{1}, []int{1}))
		})
	}
}
