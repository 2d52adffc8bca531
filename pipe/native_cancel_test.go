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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

func onNativePaths(t *testing.T, f func(t *testing.T, client, server *pipe.Pipe)) {
	onPaths(t, pathsOf(pipe.DialectNative), f)
}

// large is the size of a part that is not inline.
const large = 3 << 20

// TestNativeWriteCancelled checks that in the native dialect a cancelled write aborts only its own
// message: the write fails with the cause, Read of the message fails with ErrAborted and the
// cause's text, and the messages before and after it arrive.
func TestNativeWriteCancelled(t *testing.T) {
	any := device.Device{}
	for name, target := range map[string]device.Device{"device set": device.CPU(), "device chosen by the receiver": any} {
		t.Run(name, func(t *testing.T) {
			onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
				before, after := message(1, []int{large}, []int{large}), message(3, []int{1}, []int{large})
				first := client.WriteAsync(testContext(t), before)
				ctx, cancel := cancelled(t)
				m := message(2, []int{large, 3}, []int{large, 4, large}, target, target, target)
				second := client.WriteAsync(ctx, m)
				third := client.WriteAsync(testContext(t), after)
				one, two := next(t, server), next(t, server)
				cancel()
				err := second.Wait(testContext(t))
				require.ErrorIs(t, err, errEnough)
				require.ErrorIs(t, err, pipe.ErrCancelled)
				overwrite(m) // the race detector reports a channel that still reads it

				err = two.Read(testContext(t), pipe.NewAllocation(two.Descriptor()))
				require.ErrorIs(t, err, pipe.ErrAborted)
				require.ErrorContains(t, err, errEnough.Error())
				same(t, before, one.Descriptor(), read(t, one))
				expect(t, server, after)
				require.NoError(t, first.Wait(testContext(t)))
				require.NoError(t, third.Wait(testContext(t)))
				require.NoError(t, client.Err())
			})
		})
	}
}

// TestNativeWriteCancelledDuringTransfer checks that a write that is cancelled while its tensor is
// being transferred aborts only its own message. Read returns ErrAborted with the cause's text or,
// if all bytes came before the ABORT frame, a tensor with intact bytes. The pipe stays up.
func TestNativeWriteCancelledDuringTransfer(t *testing.T) {
	short.Skip(t, "large tensors on every path")
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		exchange(t, client, server, message(0, nil, []int{large})) // opens the bulk connection
		for range race.Pick(5, 2) {
			ctx, cancel := cancelled(t)
			wanted := client.WriteAsync(testContext(t), message(1, nil, []int{large}))
			m := message(2, nil, []int{8 * large})
			aborted := client.WriteAsync(ctx, m)
			one, two := next(t, server), next(t, server)
			a, read := pipe.NewAllocation(two.Descriptor()), make(chan error, 1)
			go func() { read <- two.Read(testContext(t), a) }()
			readInto(t, one, pipe.NewAllocation(one.Descriptor()))
			cancel()
			if aborted.Wait(testContext(t)) != nil {
				overwrite(m) // the race detector reports a channel that still reads it
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

// TestNativeWriteCancelledBeforeNext checks that Next does not return a message whose write was
// cancelled before the call; it returns the next one.
func TestNativeWriteCancelledBeforeNext(t *testing.T) {
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

// TestNativeReadWithEndedContext checks that a Read whose ctx has ended before the call fails with
// the cause of ctx, and does not claim the message: a second Read receives it.
func TestNativeReadWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath())
		m := message(1, nil, []int{large, large})
		op := client.WriteAsync(t.Context(), m)
		in := next(t, server)
		ctx, cancel := cancelled(t)
		a := pipe.NewAllocation(in.Descriptor())
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

// TestNativeReadsInAnyOrder checks that in the native dialect messages of all sizes can be read in
// the reverse order of Next, and the write of each completes with its Read.
func TestNativeReadsInAnyOrder(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		count := race.Pick(12, 6) // each form of message
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

// TestNativeDiscardSendsNoBytes checks that Discard of a message makes its write complete without
// an error. The message is not counted in PipeStats.Received, and the next message arrives.
func TestNativeDiscardSendsNoBytes(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		op := client.WriteAsync(testContext(t), message(1, nil, []int{large, large}))
		require.NoError(t, next(t, server).Discard(testContext(t)))
		require.NoError(t, op.Wait(testContext(t)))
		require.Zero(t, server.Stats().Received.Bytes)
		write(t, client, message(2, []int{1}, nil))
		expect(t, server, message(2, []int{1}, nil))
	})
}

// TestNativeDeadline checks that the receiver's descriptor has the deadline of the message. At that
// time the write fails with DeadlineExceeded and Read with ErrAborted. A Write after the deadline
// fails with DeadlineExceeded. The pipe stays up.
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

// TestReasonOfThePeerIsQuoted checks that the error of Read quotes the reason with which the peer
// has aborted the message, so that the error has only printable characters and cannot forge lines
// of a log.
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
