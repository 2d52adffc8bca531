package pipe_test

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// lentMessage is one that is too much to be copied where the stream has no room.
func lentMessage(seed int) *pipe.Message {
	return message(seed, []int{200_000, 0, 1}, []int{300_000, 5})
}

// What the stream has no room for leaves in order, be it copied or lent.
func TestPolledLoansKeepTheOrder(t *testing.T) {
	client, server := connectPolled(t, newTap(1<<20))
	var sent []*pipe.Message
	var ops []*pipe.WriteOp
	for i := range 4 {
		sent = append(sent, lentMessage(3*i), inlineMessage(3*i+1), message(3*i+2, []int{i}, nil))
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

// jammedWrites begins to write two messages that are lent to a stream without room,
// of which the first is being written.
func jammedWrites(t *testing.T, tap *tap, client *pipe.Pipe) (ops [2]*pipe.WriteOp, sent [2]*pipe.Message, cancel func()) {
	ctx, cancel := cancelled(t)
	tap.jam(true)
	for i := range ops {
		sent[i] = lentMessage(i)
		ops[i] = client.WriteAsync(ctx, sent[i])
		tap.awaitBlocked(1)
	}
	return ops, sent, cancel
}

// A loan that is called back by a ctx ends at once, though the stream has no room: the
// message leaves from a copy.
func TestPolledLoanIsCalledBack(t *testing.T) {
	tap := newTap(1 << 20)
	client, server := connectPolled(t, tap)
	ops, sent, cancel := jammedWrites(t, tap, client)
	cancel()
	for i, op := range ops {
		require.NoError(t, op.Wait(testContext(t)))
		for _, p := range sent[i].Payloads {
			clear(p.Data) // the race detector sees whoever still reads it
		}
	}
	write(t, client, message(7, []int{3}, nil))
	tap.jam(false)
	for i := range ops {
		expect(t, server, lentMessage(i))
	}
	expect(t, server, message(7, []int{3}, nil))
}

// A loan ends with the pipe, and with its reason.
func TestPolledLoanEndsWithThePipe(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(client, server *pipe.Pipe)
		with error
	}{
		"abort":      {func(client, _ *pipe.Pipe) { client.Abort(errEnough) }, errEnough},
		"peer's end": {func(_, server *pipe.Pipe) { server.Abort(errEnough) }, pipe.ErrPeerClosed},
	} {
		t.Run(name, func(t *testing.T) {
			tap := newTap(1 << 20)
			client, server := connectPolled(t, tap)
			ops, _, _ := jammedWrites(t, tap, client)
			end.by(client, server)
			for _, op := range ops {
				require.ErrorIs(t, op.Wait(testContext(t)), end.with)
			}
		})
	}
}

// Where writing fails the loan ends with what that means.
func TestPolledLoanEndsWithTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(1 << 20)
		client, server := connectPolled(t, tap)
		ops, _, _ := jammedWrites(t, tap, client)
		tap.breakOff(syscall.ECONNRESET)
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

// Nor does it wait for a stream that has no room when the message's time is over.
func TestPolledLoanAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(1 << 20)
		client, server := connectPolled(t, tap)
		tap.jam(true)
		m := lentMessage(1)
		begin := time.Now()
		m.Deadline = begin.Add(time.Second)
		require.NoError(t, client.Write(testContext(t), m))
		require.Equal(t, time.Second, time.Since(begin), "in virtual time")
		for _, p := range m.Payloads {
			clear(p.Data)
		}
		tap.jam(false)
		expect(t, server, lentMessage(1))
		client.Abort(nil)
		server.Abort(nil)
	})
}

// A loan that is through when it is called back harms nothing behind it.
func TestPolledLoanIsCalledBackTooLate(t *testing.T) {
	tap := newTap(1 << 20)
	client, server := connectPolled(t, tap)
	for i := range 20 {
		ctx, cancel := cancelled(t)
		op := client.WriteAsync(ctx, lentMessage(2*i))
		in := next(t, server)
		a := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(testContext(t), a)) // the loan is through, and may not know
		cancel()
		write(t, client, inlineMessage(2*i+1))
		require.NoError(t, op.Wait(testContext(t)))
		same(t, lentMessage(2*i), in.Descriptor(), a)
		expect(t, server, inlineMessage(2*i+1))
	}
}

// Close waits for what is lent.
func TestPolledCloseWaitsForLoans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(1 << 20)
		client, server := connectPolled(t, tap)
		ops, sent, _ := jammedWrites(t, tap, client)
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		synctest.Wait()
		require.Empty(t, closed)
		tap.jam(false)
		for i := range ops {
			expect(t, server, sent[i])
			require.NoError(t, ops[i].Wait(testContext(t)))
		}
		require.NoError(t, <-closed)
	})
}
