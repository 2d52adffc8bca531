package pipe_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// recorder keeps the events of a context in the order in which they were reported.
type recorder struct {
	mu  sync.Mutex
	all []any
}

func (r *recorder) add(info any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, info)
}

// into sets o.Events so that r records every event.
func (r *recorder) into(o *pipe.Options) {
	o.Events = &pipe.Events{
		Opened:            func(i pipe.OpenedInfo) { r.add(i) },
		CandidateRejected: func(i pipe.RejectedInfo) { r.add(i) },
		MessageWritten:    func(i pipe.WrittenInfo) { r.add(i) },
		MessageRead:       func(i pipe.ReadInfo) { r.add(i) },
		WriterBlocked:     func(i pipe.BlockedInfo) { r.add(i) },
		PeerLost:          func(i pipe.PeerLostInfo) { r.add(i) },
		Closed:            func(i pipe.ClosedInfo) { r.add(i) },
	}
}

// kinds returns the type names of all recorded events, in order, such as "pipe.OpenedInfo".
func (r *recorder) kinds() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, info := range r.all {
		out = append(out, fmt.Sprintf("%T", info))
	}
	return out
}

// eventsOf returns the recorded events of type I, in order.
func eventsOf[I any](r *recorder) (out []I) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, info := range r.all {
		if i, ok := info.(I); ok {
			out = append(out, i)
		}
	}
	return out
}

// only returns the recorded event of type I, and fails the test unless there is exactly one.
func only[I any](t *testing.T, r *recorder) I {
	t.Helper()
	all := eventsOf[I](r)
	require.Len(t, all, 1)
	return all[0]
}

// recordBothDialects runs f as a subtest for each dialect, in virtual time, with the two ends of a
// new pipe and the recorders of their events. adjust changes the options of both ends before they
// are used.
func recordBothDialects(
	t *testing.T, adjust func(*pipe.Options), f func(t *testing.T, client, server *pipe.Pipe, atClient, atServer *recorder),
) {
	for _, p := range []path{nativePath(), memPath()} {
		t.Run(string(p.dialect), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var atClient, atServer recorder
				a, b := newContext(t, p, adjust, atClient.into), newContext(t, p, adjust, atServer.into)
				client, server := connectContexts(t, a, b, p.url)
				f(t, client, server, &atClient, &atServer)
			})
		})
	}
}

func unchanged(*pipe.Options) {}

// TestEventsOfPipe checks that each end of a pipe that is used and closed in order reports its
// rejected candidates, its opening, its message and its end, in this order and with the right
// contents.
func TestEventsOfPipe(t *testing.T) {
	reject := func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: "forbidden", Priority: 1, Factory: o.Channels[0].Factory})
		o.Policy.Channels.Forbid = []string{"forbidden"}
	}
	recordBothDialects(t, reject, func(t *testing.T, client, server *pipe.Pipe, atClient, atServer *recorder) {
		write(t, client, message(1, []int{10}, []int{20}, device.CPU()))
		expect(t, server, message(1, []int{10}, []int{20}, device.CPU()))
		closed := make(chan error)
		go func() { closed <- server.Close() }()
		require.NoError(t, client.Close())
		require.NoError(t, <-closed)

		begin := slices.Repeat([]string{"pipe.RejectedInfo"}, len(client.Plan().Refused))
		require.Equal(t, append(begin, "pipe.OpenedInfo", "pipe.WrittenInfo", "pipe.ClosedInfo"), atClient.kinds())
		begin = slices.Repeat([]string{"pipe.RejectedInfo"}, len(server.Plan().Refused))
		require.Equal(t, append(begin, "pipe.OpenedInfo", "pipe.ReadInfo", "pipe.ClosedInfo"), atServer.kinds())
		for end, r := range map[*pipe.Pipe]*recorder{client: atClient, server: atServer} {
			opened := only[pipe.OpenedInfo](t, r)
			require.Same(t, end.Plan(), opened.Plan)
			require.EqualValues(t, 1, opened.Pipe.Number)
			require.Equal(t, opened.Pipe.Number, end.Number())
			require.NotEmpty(t, opened.Pipe.Peer)
			var rejected []pipe.Refusal
			for _, i := range eventsOf[pipe.RejectedInfo](r) {
				require.Equal(t, opened.Pipe, i.Pipe)
				rejected = append(rejected, i.Candidate)
			}
			require.Equal(t, end.Plan().Refused, rejected)
			require.Contains(t, rejected, pipe.Refusal{Kind: pipe.CandidateChannel, Name: "forbidden", Reason: "forbidden by the policy"})
			end := only[pipe.ClosedInfo](t, r)
			require.Equal(t, opened.Pipe, end.Pipe)
			require.ErrorIs(t, end.Err, pipe.ErrClosed)
		}
		written, read := only[pipe.WrittenInfo](t, atClient), only[pipe.ReadInfo](t, atServer)
		require.Equal(t, []int{len("metadata 1"), 30}, []int{written.MetadataBytes, written.Bytes})
		require.Equal(t, []int{len("metadata 1"), 30}, []int{read.MetadataBytes, read.Bytes})
		require.NoError(t, written.Err)
		require.NoError(t, read.Err)
		require.False(t, read.Discarded)
	})
}

// TestEventsNumberPipes checks that each pipe of a context has its own number, and that the event
// of its end has that number.
func TestEventsNumberPipes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		p := nativePath()
		a, b := newContext(t, p, r.into), newContext(t, p)
		one, _ := connectContexts(t, a, b, p.url)
		two, _ := connectContexts(t, a, b, p.url)
		require.Equal(t, []uint64{1, 2}, []uint64{one.Number(), two.Number()})
		two.Abort(errEnough)
		<-two.Done()
		end := only[pipe.ClosedInfo](t, &r)
		require.EqualValues(t, 2, end.Pipe.Number)
		require.ErrorIs(t, end.Err, errEnough)
		require.Empty(t, eventsOf[pipe.PeerLostInfo](&r))
	})
}

// TestEventsOfWrites checks that Write, WriteConfirmed, WriteAsync and TryWrite each report their
// message once, before they return or their operation is done, and that the event has the time that
// the write took.
func TestEventsOfWrites(t *testing.T) {
	recordBothDialects(t, unchanged, func(t *testing.T, client, server *pipe.Pipe, atClient, _ *recorder) {
		const late = 3 * time.Second
		large := message(1, nil, []int{4 << 20}, device.Device{})
		op := client.WriteAsync(t.Context(), large)
		synctest.Wait()
		require.Empty(t, eventsOf[pipe.WrittenInfo](atClient))
		<-time.NewTimer(late).C // in virtual time
		expect(t, server, large)
		<-op.Done()
		info := only[pipe.WrittenInfo](t, atClient)
		require.Equal(t, 4<<20, info.Bytes)
		require.GreaterOrEqual(t, info.Duration, late)
		require.False(t, info.Start.After(time.Now().Add(-info.Duration)))

		small := message(2, []int{5}, nil)
		confirmed := make(chan error)
		go func() { confirmed <- client.WriteConfirmed(t.Context(), small) }()
		expect(t, server, small)
		require.NoError(t, <-confirmed)
		require.Len(t, eventsOf[pipe.WrittenInfo](atClient), 2)

		if taken, err := client.TryWrite(small); taken {
			require.NoError(t, err)
			require.Len(t, eventsOf[pipe.WrittenInfo](atClient), 3)
			expect(t, server, small)
		} else {
			require.Len(t, eventsOf[pipe.WrittenInfo](atClient), 2)
		}
		before := len(eventsOf[pipe.WrittenInfo](atClient))
		require.NoError(t, client.WriteAsync(t.Context(), message(3, nil, nil)).Wait(t.Context()))
		expect(t, server, message(3, nil, nil))
		require.Len(t, eventsOf[pipe.WrittenInfo](atClient), before+1)
	})
}

// TestEventsOfFailedWrites checks that a write that fails is reported with its error: of a message
// that cannot be sent, of one that is cancelled while its tensor waits for the receiver, and of one
// on a pipe that has ended.
func TestEventsOfFailedWrites(t *testing.T) {
	recordBothDialects(t, unchanged, func(t *testing.T, client, _ *pipe.Pipe, atClient, _ *recorder) {
		last := func() pipe.WrittenInfo {
			all := eventsOf[pipe.WrittenInfo](atClient)
			return all[len(all)-1]
		}
		err := client.Write(t.Context(), nil)
		require.ErrorIs(t, err, pipe.ErrMessage)
		require.Equal(t, err, last().Err)
		require.ErrorIs(t, client.WriteAsync(t.Context(), nil).Err(), pipe.ErrMessage)
		require.Len(t, eventsOf[pipe.WrittenInfo](atClient), 2)

		ctx, cancel := context.WithCancel(t.Context())
		op := client.WriteAsync(ctx, message(1, nil, []int{4 << 20}, device.Device{}))
		synctest.Wait()
		cancel()
		<-op.Done()
		require.Len(t, eventsOf[pipe.WrittenInfo](atClient), 3)
		require.ErrorIs(t, last().Err, pipe.ErrCancelled)
		require.Equal(t, op.Err(), last().Err)

		client.Abort(errEnough)
		<-client.Done()
		require.Error(t, client.Write(t.Context(), message(2, nil, nil)))
		require.Len(t, eventsOf[pipe.WrittenInfo](atClient), 4)
		require.Error(t, last().Err)
	})
}

// TestEventsOfReads checks that calls of Read and Discard are reported with their results, also
// those that fail or are cancelled.
func TestEventsOfReads(t *testing.T) {
	recordBothDialects(t, unchanged, func(t *testing.T, client, server *pipe.Pipe, _, atServer *recorder) {
		write(t, client, message(1, []int{10}, nil))
		in, err := server.Next(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, in.Read(t.Context(), pipe.Allocation{}), pipe.ErrAllocation)
		require.ErrorIs(t, only[pipe.ReadInfo](t, atServer).Err, pipe.ErrAllocation)
		require.NoError(t, in.Discard(t.Context()))
		all := eventsOf[pipe.ReadInfo](atServer)
		require.Len(t, all, 2)
		require.True(t, all[1].Discarded)
		require.NoError(t, all[1].Err)
		require.Equal(t, 10, all[1].Bytes)
		require.ErrorIs(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())), pipe.ErrAlreadyRead)

		write(t, client, message(2, nil, nil))
		in, err = server.Next(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, in.Read(ctx, pipe.NewAllocation(in.Descriptor())), context.Canceled)
		all = eventsOf[pipe.ReadInfo](atServer)
		require.Len(t, all, 4)
		require.ErrorIs(t, all[2].Err, pipe.ErrAlreadyRead)
		require.ErrorIs(t, all[3].Err, context.Canceled)
	})
}

// TestEventsOfBlockedWriters checks that a writer that waits for the budget of its pipe or of its
// context is reported with that budget, the bytes and the duration, also if the wait is cancelled.
func TestEventsOfBlockedWriters(t *testing.T) {
	const half = 1 << 20
	for budget, limit := range map[pipe.WriteBudget]func(*pipe.Options){
		pipe.BudgetPipe:    func(o *pipe.Options) { o.Limits.PipeBytesInFlight = half + half/2 },
		pipe.BudgetContext: func(o *pipe.Options) { o.Limits.ContextBytesInFlight = half + half/2 },
	} {
		t.Run(string(budget), func(t *testing.T) {
			recordBothDialects(t, limit, func(t *testing.T, client, server *pipe.Pipe, atClient, _ *recorder) {
				const wait = 5 * time.Second
				large := func(seed int) *pipe.Message { return message(seed, nil, []int{half}, device.Device{}) }
				first := client.WriteAsync(t.Context(), large(1))
				if budget == pipe.BudgetContext { // a message takes at most half of it
					first = client.WriteAsync(t.Context(), large(2))
				}
				synctest.Wait()
				require.Empty(t, eventsOf[pipe.BlockedInfo](atClient))
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				require.ErrorIs(t, client.Write(ctx, large(3)), context.DeadlineExceeded)
				info := only[pipe.BlockedInfo](t, atClient)
				require.Equal(t, budget, info.Budget)
				require.Equal(t, wait, info.Duration)
				require.False(t, info.Acquired)
				require.Positive(t, info.Bytes)

				done := make(chan error)
				go func() { done <- client.Write(t.Context(), large(4)) }()
				synctest.Wait()
				<-time.NewTimer(wait).C // in virtual time
				expect(t, server, large(1))
				if budget == pipe.BudgetContext {
					expect(t, server, large(2))
				}
				<-first.Done()
				expect(t, server, large(4))
				require.NoError(t, <-done)
				all := eventsOf[pipe.BlockedInfo](atClient)
				require.Len(t, all, 2)
				require.True(t, all[1].Acquired)
				require.Equal(t, wait, all[1].Duration)
			})
		})
	}
}
