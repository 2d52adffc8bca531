package pipe_test

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// borrowedMessage returns a new message with inline parts that are too large to be copied: if the
// stream is full, the pipe writes them later from the message's own memory. seed determines the
// bytes.
func borrowedMessage(seed int) *pipe.Message {
	return message(seed, []int{200_000, 0, 1}, []int{300_000, 5})
}

// TestPolledBorrowedPartsKeepOrder checks that messages that are written while the stream is full
// arrive in order, no matter whether their bytes are copied or written from the caller's memory.
func TestPolledBorrowedPartsKeepOrder(t *testing.T) {
	client, server := connectPolled(t, newThrottle(1<<20))
	var sent []*pipe.Message
	var ops []*pipe.WriteOp
	for i := range 4 {
		sent = append(sent, borrowedMessage(3*i), inlineMessage(3*i+1), message(3*i+2, []int{i}, nil))
	}
	for _, m := range sent {
		ops = append(ops, client.WriteAsync(testContext(t), m))
	}
	for _, m := range sent {
		expect(t, server, m)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(testContext(t)))
	}
}

// blockedWrites blocks the client's stream and starts two writes, of messages that are written from
// their own memory. When it returns, the first write is blocked in the stream and the second is
// queued. It returns the operations, the messages, and a function that ends the context of both.
func blockedWrites(t *testing.T, throttle *throttle, client *pipe.Pipe) (ops [2]*pipe.WriteOp, sent [2]*pipe.Message, cancel func()) {
	ctx, cancel := cancelled(t)
	throttle.blockWrites(true)
	for i := range ops {
		sent[i] = borrowedMessage(i)
		ops[i] = client.WriteAsync(ctx, sent[i])
		throttle.awaitBlocked(1)
	}
	return ops, sent, cancel
}

// TestPolledCancelCopiesBorrowedParts checks that if the context of a write that waits for the
// stream ends, the write returns at once without an error: the unsent bytes are copied. The message
// arrives intact even if the caller then overwrites it.
func TestPolledCancelCopiesBorrowedParts(t *testing.T) {
	throttle := newThrottle(1 << 20)
	client, server := connectPolled(t, throttle)
	ops, sent, cancel := blockedWrites(t, throttle, client)
	cancel()
	for i, op := range ops {
		require.NoError(t, op.Wait(testContext(t)))
		for _, p := range sent[i].Payloads {
			clear(p.Data) // the race detector reports a reader
		}
	}
	write(t, client, message(7, []int{3}, nil))
	throttle.blockWrites(false)
	for i := range ops {
		expect(t, server, borrowedMessage(i))
	}
	expect(t, server, message(7, []int{3}, nil))
}

// TestPolledBorrowedPartsWhenPipeFails checks that a write from the caller's memory that waits for
// the stream ends when the pipe ends, with the error of the pipe.
func TestPolledBorrowedPartsWhenPipeFails(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(client, server *pipe.Pipe)
		with error
	}{
		"abort":      {func(client, _ *pipe.Pipe) { client.Abort(errEnough) }, errEnough},
		"peer's end": {func(_, server *pipe.Pipe) { server.Abort(errEnough) }, pipe.ErrPeerClosed},
	} {
		t.Run(name, func(t *testing.T) {
			throttle := newThrottle(1 << 20)
			client, server := connectPolled(t, throttle)
			ops, _, _ := blockedWrites(t, throttle, client)
			end.by(client, server)
			for _, op := range ops {
				require.ErrorIs(t, op.Wait(testContext(t)), end.with)
			}
		})
	}
}

// TestPolledBorrowedPartsWhenStreamFails checks that a write from the caller's memory fails when
// the stream fails, with a *pipe.Error that matches ErrPeerLost and the error of the stream.
func TestPolledBorrowedPartsWhenStreamFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle(1 << 20)
		client, server := connectPolled(t, throttle)
		ops, _, _ := blockedWrites(t, throttle, client)
		throttle.failWrites(syscall.ECONNRESET)
		for _, op := range ops {
			err := op.Wait(testContext(t))
			require.ErrorIs(t, err, pipe.ErrPeerLost)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			var known *pipe.Error
			require.ErrorAs(t, err, &known)
		}
		server.Abort(nil)
	})
}

// TestPolledDeadlineCopiesBorrowedParts checks that a write that waits for the stream returns
// without an error at the message's deadline: the unsent bytes are copied. The message arrives
// intact even if the caller then overwrites it.
func TestPolledDeadlineCopiesBorrowedParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle(1 << 20)
		client, server := connectPolled(t, throttle)
		throttle.blockWrites(true)
		m := borrowedMessage(1)
		begin := time.Now()
		m.Deadline = begin.Add(time.Second)
		require.NoError(t, client.Write(testContext(t), m))
		require.Equal(t, time.Second, time.Since(begin), "in virtual time")
		for _, p := range m.Payloads {
			clear(p.Data)
		}
		throttle.blockWrites(false)
		expect(t, server, borrowedMessage(1))
		client.Abort(nil)
		server.Abort(nil)
	})
}

// TestPolledCancelAfterBorrowedPartsAreSent checks that ending the context of a write whose bytes
// are already sent has no effect: that message and the next one arrive intact.
func TestPolledCancelAfterBorrowedPartsAreSent(t *testing.T) {
	throttle := newThrottle(1 << 20)
	client, server := connectPolled(t, throttle)
	for i := range 20 {
		ctx, cancel := cancelled(t)
		op := client.WriteAsync(ctx, borrowedMessage(2*i))
		in := next(t, server)
		a := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(testContext(t), a)) // the message is sent; its write may not have returned
		cancel()
		write(t, client, inlineMessage(2*i+1))
		require.NoError(t, op.Wait(testContext(t)))
		same(t, borrowedMessage(2*i), in.Descriptor(), a)
		expect(t, server, inlineMessage(2*i+1))
	}
}

// TestPolledCloseWaitsForBorrowedParts checks that Close waits until messages that are written from
// the caller's memory have been sent.
func TestPolledCloseWaitsForBorrowedParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle(1 << 20)
		client, server := connectPolled(t, throttle)
		ops, sent, _ := blockedWrites(t, throttle, client)
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		synctest.Wait()
		require.Empty(t, closed)
		throttle.blockWrites(false)
		for i := range ops {
			expect(t, server, sent[i])
			require.NoError(t, ops[i].Wait(testContext(t)))
		}
		require.NoError(t, <-closed)
	})
}
