package pipe_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func onNativePaths(t *testing.T, f func(t *testing.T, client, server *pipe.Pipe)) {
	onPaths(t, pathsOf(pipe.DialectNative), f)
}

// large is more than travels inside a message.
const large = 3 << 20

// In the native dialect a cancelled write gives up its message alone, at any
// time: the receiver is told why, and what is before and behind it arrives.
func TestNativeWriteIsGivenUp(t *testing.T) {
	any := device.Device{}
	for name, target := range map[string]device.Device{"device named": device.CPU(), "device open": any} {
		t.Run(name, func(t *testing.T) {
			onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
				before, behind := message(1, []int{large}, []int{large}), message(3, []int{1}, []int{large})
				first := client.WriteAsync(testContext(t), before)
				ctx, cancel := cancelled(t)
				m := message(2, []int{large, 3}, []int{large, 4, large}, target, target, target)
				second := client.WriteAsync(ctx, m)
				third := client.WriteAsync(testContext(t), behind)
				one, two := next(t, server), next(t, server)
				cancel()
				err := second.Wait(testContext(t))
				require.ErrorIs(t, err, errEnough)
				require.ErrorIs(t, err, pipe.ErrCancelled)
				scribble(m) // the race detector sees whoever still reads it

				err = two.Read(testContext(t), pipe.NewAllocation(two.Descriptor()))
				require.ErrorIs(t, err, pipe.ErrAborted)
				require.ErrorContains(t, err, errEnough.Error())
				same(t, before, one.Descriptor(), read(t, one))
				expect(t, server, behind)
				require.NoError(t, first.Wait(testContext(t)))
				require.NoError(t, third.Wait(testContext(t)))
				require.NoError(t, client.Err())
			})
		})
	}
}

// So it is also for a message of which part has come. Two that are read at a time
// take turns, so when the first is there the second is on its way. If all of it has
// come before the word that it is given up, it is as it was sent.
func TestNativeWriteIsGivenUpHalfway(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		exchange(t, client, server, message(0, nil, []int{large})) // what opens for the first is open
		for range 5 {
			ctx, cancel := cancelled(t)
			wanted := client.WriteAsync(testContext(t), message(1, nil, []int{large}))
			m := message(2, nil, []int{8 * large})
			regretted := client.WriteAsync(ctx, m)
			one, two := next(t, server), next(t, server)
			a, read := pipe.NewAllocation(two.Descriptor()), make(chan error, 1)
			go func() { read <- two.Read(testContext(t), a) }()
			readInto(t, one, pipe.NewAllocation(one.Descriptor()))
			cancel()
			if regretted.Wait(testContext(t)) != nil {
				scribble(m) // the race detector sees whoever still reads it
			}
			if err := <-read; err == nil {
				same(t, message(2, nil, []int{8 * large}), two.Descriptor(), a)
			} else {
				require.ErrorIs(t, err, pipe.ErrAborted)
				require.ErrorContains(t, err, errEnough.Error())
			}
			require.NoError(t, wanted.Wait(testContext(t)))
			require.NoError(t, server.Err())
		}
		exchange(t, client, server, message(3, nil, []int{large}))
	})
}

// A message given up before the receiver asked for it is never seen.
func TestNativeWriteGivenUpBeforeItIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath())
		ctx, cancel := cancelled(t)
		op := client.WriteAsync(ctx, message(1, []int{large}, nil))
		synctest.Wait()
		cancel()
		require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
		write(t, client, message(2, []int{5}, nil))
		synctest.Wait()
		expect(t, server, message(2, []int{5}, nil))
	})
}

// A cancelled read gives up its message alone; the writer is done with it.
func TestNativeReadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath())
		m := message(1, nil, []int{large, large})
		op := client.WriteAsync(t.Context(), m)
		in := next(t, server)
		ctx, cancel := cancelled(t)
		a := pipe.NewAllocation(in.Descriptor())
		// One buffer waits for the work of a stream that does not come to an end.
		read := make(chan error, 1)
		cancel()
		go func() { read <- in.Read(ctx, a) }()
		err := <-read
		require.ErrorIs(t, err, errEnough)
		require.NotErrorIs(t, err, pipe.ErrCancelled, "nothing had begun")
		same(t, m, in.Descriptor(), readInto(t, in, a))
		require.NoError(t, op.Wait(t.Context()))
	})
}

// Messages are read in any order, and small ones do not wait for large ones.
func TestNativeReadsInAnyOrder(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		const count = 12
		var ops []*pipe.WriteOp
		var sent []*pipe.Message
		for i := range count {
			m := message(i, []int{i, large * (i % 2)}, []int{large * (i % 3), 10})
			sent = append(sent, m)
			ops = append(ops, client.WriteAsync(testContext(t), m))
		}
		var got []*pipe.Incoming
		for range count {
			got = append(got, next(t, server))
		}
		for i := count - 1; i >= 0; i-- {
			same(t, sent[i], got[i].Descriptor(), read(t, got[i]))
			require.NoError(t, ops[i].Wait(testContext(t)))
		}
	})
}

// What is discarded does not travel; the writer is done with it.
func TestNativeDiscardSparesTheBytes(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		op := client.WriteAsync(testContext(t), message(1, nil, []int{large, large}))
		require.NoError(t, next(t, server).Discard(testContext(t)))
		require.NoError(t, op.Wait(testContext(t)))
		require.Zero(t, server.Stats().Received.Bytes)
		write(t, client, message(2, []int{1}, nil))
		expect(t, server, message(2, []int{1}, nil))
	})
}

// The deadline of a message travels, and ends a message that waits.
func TestNativeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath())
		m := message(1, []int{3}, []int{large})
		m.Deadline = time.Now().Add(time.Hour)
		op := client.WriteAsync(t.Context(), m)
		in := next(t, server)
		require.Equal(t, m.Deadline, in.Descriptor().Deadline)
		<-time.NewTimer(time.Hour).C
		require.ErrorIs(t, op.Wait(t.Context()), context.DeadlineExceeded)
		require.ErrorIs(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())), pipe.ErrAborted)

		require.ErrorIs(t, client.Write(t.Context(), m), context.DeadlineExceeded, "it had passed")
		write(t, client, message(2, nil, nil))
		expect(t, server, message(2, nil, nil))
	})
}

func next(t *testing.T, p *pipe.Pipe) *pipe.Incoming {
	t.Helper()
	in, err := p.Next(testContext(t))
	require.NoError(t, err)
	return in
}

func readInto(t *testing.T, in *pipe.Incoming, a pipe.Allocation) pipe.Allocation {
	t.Helper()
	require.NoError(t, in.Read(testContext(t), a))
	return a
}

// What the peer says of its reasons cannot pass for anything else in a log.
func TestReasonOfThePeerIsQuoted(t *testing.T) {
	client, server := connect(t, nativePath())
	ctx, cancel := context.WithCancelCause(testContext(t))
	op := client.WriteAsync(ctx, message(1, nil, []int{1 << 20}))
	in, err := server.Next(testContext(t))
	require.NoError(t, err)
	cancel(errors.New("x\nlevel=ERROR msg=\"all is lost\"\r\x1b[2J"))
	require.ErrorIs(t, op.Wait(testContext(t)), pipe.ErrCancelled)
	err = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
	require.ErrorIs(t, err, pipe.ErrAborted)
	require.ErrorContains(t, err, "all is lost")
	for _, r := range err.Error() {
		require.True(t, unicode.IsPrint(r), "%q in %q", r, err)
	}
}
