package pipe_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// rendezvous is the size of a part that is too large to be eager.
const rendezvous = 5 << 20

// eagerPaths are paths on which parts of a few MiB are eager.
func eagerPaths() []path {
	return []path{pathNamed("mem+basic+native"), pathNamed("uv+basic+native"), pathNamed("tls+basic+native")}
}

// grantCredit makes both ends open the bulk connection and grant credit. A READY of the second
// message follows the grant.
func grantCredit(t *testing.T, client, server *pipe.Pipe) {
	t.Helper()
	for range 2 {
		exchange(t, client, server, message(1, []int{rendezvous}, nil))
	}
}

// eager lets the ends send parts at once, also on paths that do not by default.
func eager(o *pipe.Options) { o.NoEager = false }

// onEagerPaths runs f with pipes whose ends have credit for eager parts.
func onEagerPaths(t *testing.T, f func(t *testing.T, client, server *pipe.Pipe), adjust ...func(*pipe.Options)) {
	for _, p := range eagerPaths() {
		t.Run(p.name, func(t *testing.T) {
			client, server := connect(t, p, append(adjust, eager)...)
			grantCredit(t, client, server)
			f(t, client, server)
		})
	}
}

// eagerMessage returns a message whose parts are a payload, two tensors in one transfer, and small
// ones. It is too long for an answer with inline parts.
func eagerMessage(seed int) *pipe.Message {
	return message(seed, []int{400_000, 10}, []int{500_000, 100, 200_000}, device.CPU(), device.CPU(), device.CPU())
}

// TestEager checks that parts of a few MiB are sent although the receiver reads nothing, more of them
// than the credit once it reads, and that the messages can be read in any order.
func TestEager(t *testing.T) {
	withChecksum := func(o *pipe.Options) { o.Checksum = true }
	for _, adjust := range [][]func(*pipe.Options){nil, {withChecksum}} {
		onEagerPaths(t, func(t *testing.T, client, server *pipe.Pipe) {
			for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
				var sent []*pipe.Message
				for i := range 4 {
					sent = append(sent, eagerMessage(i))
					require.NoError(t, ends[0].Write(testContext(t), sent[i]))
				}
				var got []*pipe.Incoming
				for range sent {
					got = append(got, next(t, ends[1]))
				}
				for _, i := range []int{2, 0, 3, 1} {
					same(t, sent[i], got[i].Descriptor(), read(t, got[i]))
				}
			}
			var all []*pipe.Message
			for i := range race.Pick(20, 8) { // more than the credit
				all = append(all, eagerMessage(i), message(i, []int{rendezvous}, nil), message(i, []int{3}, []int{70_000}))
			}
			exchange(t, client, server, all...)
			require.NoError(t, client.Close())
		}, adjust...)
	}
}

// TestEagerBeyondCredit checks that messages for which there is no credit are read in any order, cancelled and
// discarded, and that the pipe goes on.
func TestEagerBeyondCredit(t *testing.T) {
	onEagerPaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
			const count = 16 // twice the credit
			var sent [count]*pipe.Message
			var ops [count]*pipe.WriteOp
			var got [count]*pipe.Incoming
			ctx, cancel := context.WithCancel(testContext(t))
			for i := range count {
				sent[i] = eagerMessage(i)
				writeCtx := testContext(t)
				if i%4 == 1 {
					writeCtx = ctx
				}
				ops[i] = ends[0].WriteAsync(writeCtx, sent[i])
			}
			for i := range count {
				got[i] = next(t, ends[1])
			}
			cancel()
			for _, i := range rand.Perm(count) {
				switch i % 4 {
				case 1: // its bytes may all have been sent before
					if err := ops[i].Wait(testContext(t)); err != nil {
						require.ErrorIs(t, err, context.Canceled)
						err = got[i].Read(testContext(t), pipe.NewAllocation(got[i].Descriptor()))
						require.ErrorIs(t, err, pipe.ErrAborted)
						continue
					}
					same(t, sent[i], got[i].Descriptor(), read(t, got[i]))
				case 2:
					require.NoError(t, got[i].Discard(testContext(t)))
					require.NoError(t, ops[i].Wait(testContext(t)))
				default:
					same(t, sent[i], got[i].Descriptor(), read(t, got[i]))
					require.NoError(t, ops[i].Wait(testContext(t)))
				}
			}
			exchange(t, ends[0], ends[1], eagerMessage(1), eagerMessage(2))
		}
		require.NoError(t, client.Close())
	})
}

// TestNoEager checks that parts wait for Read if one of the ends has set NoEager.
func TestNoEager(t *testing.T) {
	for _, which := range []int{0, 1} {
		var both [2]*pipe.Context
		for i := range both {
			both[i] = newContext(t, pathNamed("uv+basic+native"), func(o *pipe.Options) { o.NoEager = i == which })
		}
		client, server := connectContexts(t, both[0], both[1], pathNamed("uv+basic+native").url)
		grantCredit(t, client, server)
		for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
			m := eagerMessage(1)
			op := ends[0].WriteAsync(testContext(t), m)
			in := next(t, ends[1])
			require.NoError(t, ends[0].Write(testContext(t), message(2, []int{3}, nil)))
			small := next(t, ends[1])
			require.NoError(t, small.Read(testContext(t), pipe.Allocation{Payloads: [][]byte{make([]byte, 3)}}))
			select {
			case <-op.Done():
				t.Fatal("the parts were sent before Read")
			default:
			}
			same(t, m, in.Descriptor(), read(t, in))
			require.NoError(t, op.Wait(testContext(t)))
		}
	}
}

// TestEagerWriteCancelled checks that a write that is cancelled while its eager parts are on their
// way aborts only its own message, as often as one likes: the credit comes back.
func TestEagerWriteCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), eager)
		grantCredit(t, client, server)
		for i := range race.Pick(40, 9) {
			ctx, cancel := cancelled(t)
			m := message(i, []int{3 << 20}, []int{1 << 20}, device.CPU())
			op := client.WriteAsync(ctx, m)
			after := client.WriteAsync(testContext(t), eagerMessage(i))
			in := next(t, server)
			synctest.Wait()
			cancel()
			err := op.Wait(testContext(t))
			require.ErrorIs(t, err, errEnough)
			require.ErrorIs(t, err, pipe.ErrCancelled)
			overwrite(m)
			if i%3 != 0 {
				err = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
				require.ErrorIs(t, err, pipe.ErrAborted)
				require.ErrorContains(t, err, errEnough.Error())
			}
			expect(t, server, eagerMessage(i))
			require.NoError(t, after.Wait(testContext(t)))
		}
		synctest.Wait() // until the credit has come
		require.NoError(t, client.Write(testContext(t), message(1, []int{4 << 20}, nil)), "the credit is back")
		in := next(t, server)
		require.NoError(t, in.Discard(testContext(t)))
		require.NoError(t, client.Close())
	})
}

// TestEagerReadCancelled checks that messages with eager parts can be discarded, and that their Read
// can be cancelled, as often as one likes.
func TestEagerReadCancelled(t *testing.T) {
	onEagerPaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		for i := range race.Pick(30, 8) {
			op := client.WriteAsync(testContext(t), message(i, []int{1 << 20}, []int{1 << 20}, device.CPU()))
			in := next(t, server)
			if i%2 == 0 {
				require.NoError(t, in.Discard(testContext(t)))
			} else {
				ctx, cancel := context.WithCancelCause(testContext(t))
				read := make(chan error, 1)
				a := pipe.NewAllocation(in.Descriptor())
				go func() { read <- in.Read(ctx, a) }()
				cancel(errEnough)
				if err := <-read; err != nil {
					require.ErrorIs(t, err, errEnough)
					_ = in.Discard(testContext(t)) // in case the Read had not begun
				}
				clear(a.Payloads[0]) // the race detector reports a channel that still writes to it
			}
			require.NoError(t, op.Wait(testContext(t)))
			after := eagerMessage(i)
			op = client.WriteAsync(testContext(t), after)
			expect(t, server, after)
			require.NoError(t, op.Wait(testContext(t)))
		}
		exchange(t, client, server, message(1, []int{rendezvous}, nil)) // its READY follows the credit
		require.NoError(t, client.Write(testContext(t), eagerMessage(1)), "the credit is back")
		require.NoError(t, next(t, server).Discard(testContext(t)))
	})
}

// TestEagerClose checks that Close waits until the peer has read the eager parts, and that nothing is
// lost.
func TestEagerClose(t *testing.T) {
	onEagerPaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		var sent []*pipe.Message
		for i := range 4 {
			sent = append(sent, eagerMessage(i))
			require.NoError(t, client.Write(testContext(t), sent[i]))
		}
		closed := make(chan error, 1)
		go func() { closed <- client.Close() }()
		for _, m := range sent {
			require.Empty(t, closed)
			expect(t, server, m)
		}
		_, err := server.Next(testContext(t))
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
		require.NoError(t, server.Close())
		require.NoError(t, <-closed)
	})
}

// TestEagerCloseUnread checks that Close gives up if the peer never reads an eager part, and that both
// ends can close with such parts on their way.
func TestEagerCloseUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), eager, func(o *pipe.Options) { o.CloseTimeout = time.Second })
		grantCredit(t, client, server)
		require.NoError(t, client.Write(testContext(t), eagerMessage(1)))
		next(t, server)
		require.ErrorIs(t, client.Close(), pipe.ErrCloseTimeout)
		server.Abort(nil)
	})
	onEagerPaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		for _, p := range []*pipe.Pipe{client, server} {
			require.NoError(t, p.Write(testContext(t), eagerMessage(1)))
		}
		next(t, server)
		closed := make(chan error, 2)
		for _, p := range []*pipe.Pipe{client, server} {
			go func() { closed <- p.Close() }()
		}
		require.NoError(t, <-closed)
		require.NoError(t, <-closed)
	})
}

// requireRendezvous checks that a write of eager size waits for the Read.
func requireRendezvous(t *testing.T, from, to *pipe.Pipe) {
	t.Helper()
	op := from.WriteAsync(testContext(t), eagerMessage(1))
	in := next(t, to)
	<-time.NewTimer(time.Second).C
	select {
	case <-op.Done():
		t.Fatal("the write did not wait for the Read")
	default:
	}
	same(t, eagerMessage(1), in.Descriptor(), read(t, in))
	require.NoError(t, op.Wait(testContext(t)))
}

// TestEagerOfUnadmitted checks that a peer has no credit before it is admitted, and that it has some
// then.
func TestEagerOfUnadmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), eager, func(o *pipe.Options) { o.Limits.UnadmittedBytes = 64 << 20 })
		grantCredit(t, client, server)
		requireRendezvous(t, client, server)
		require.NoError(t, server.Write(testContext(t), eagerMessage(2)), "this end has dialled")
		expect(t, client, eagerMessage(2))
		server.Admit()
		synctest.Wait()
		require.NoError(t, client.Write(testContext(t), eagerMessage(3)))
		expect(t, server, eagerMessage(3))
		require.NoError(t, client.Close())
	})
}

// TestEagerWithoutWindows checks that no credit is granted if ContextWindowBytes has none to give.
func TestEagerWithoutWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), eager, func(o *pipe.Options) { o.Limits.ContextWindowBytes = 1 << 20 })
		grantCredit(t, client, server)
		requireRendezvous(t, client, server)
		require.NoError(t, client.Close())
	})
}

// TestEagerBeforeBulkConnection checks that the first message, for which there is no bulk connection,
// waits for the Read.
func TestEagerBeforeBulkConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := connect(t, nativePath(), eager)
		requireRendezvous(t, client, server)
		require.NoError(t, client.Close())
	})
}
