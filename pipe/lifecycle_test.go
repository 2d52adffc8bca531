package pipe_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestCloseWhilePeerWrites checks that if one end closes while the other sends large messages, the
// messages of the closing end arrive, and Next of the other end then returns ErrPeerClosed.
func TestCloseWhilePeerWrites(t *testing.T) {
	short.Skip(t, "64 MiB on every path")
	size := race.Pick(64<<20, 16<<20)
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		for i := range 8 {
			write(t, server, message(i, []int{1000}, nil))
		}
		incoming := client.WriteAsync(testContext(t), message(2, []int{size}, []int{size}, device.CPU()))
		require.NoError(t, server.Close())
		<-incoming.Done()
		for i := range 8 {
			expect(t, client, message(i, []int{1000}, nil))
		}
		_, err := client.Next(testContext(t))
		require.ErrorIs(t, err, pipe.ErrPeerClosed)
	})
}

func TestAbortWithoutCause(t *testing.T) {
	client, _ := connect(t, memPath())
	client.Abort(nil)
	client.Abort(nil)
	<-client.Done()
	require.ErrorIs(t, client.Err(), pipe.ErrClosed)
}

func TestNegativeOptionsAreRefused(t *testing.T) {
	for _, set := range []func(*pipe.Options){
		func(o *pipe.Options) { o.Limits.MaxAcceptBacklog = -1 },
		func(o *pipe.Options) { o.Limits.MaxReadAheadMessages = -1 },
		func(o *pipe.Options) { o.Limits.MessageBytes = -5 },
		func(o *pipe.Options) { o.HandshakeTimeout = -1 },
		func(o *pipe.Options) { o.CloseTimeout = -1 },
	} {
		o := memPath().opts()
		set(&o)
		_, err := pipe.New(o)
		require.ErrorIs(t, err, pipe.ErrOptions)
	}
}

// TestManyDialsWithFewSlots checks that with MaxHandshakesInProgress of 4 and many concurrent
// dials, at least 4 pipes are opened: handshakes in progress do not take the slots that their own
// further connections need. Single dials may fail.
func TestManyDialsWithFewSlots(t *testing.T) {
	const slots = 4
	path := memPath()
	a := newContext(t, path)
	b := newContext(t, path, func(o *pipe.Options) { o.Limits.MaxHandshakesInProgress = slots })
	l, err := b.Listen(testContext(t), path.url)
	require.NoError(t, err)
	var accepts sync.WaitGroup
	var failed error
	ctx, enough := context.WithCancel(testContext(t))
	accepts.Go(func() {
		defer enough()
		for i := 0; i < slots && failed == nil; i++ {
			_, failed = l.Accept(ctx)
		}
	})
	for ctx.Err() == nil {
		var dials sync.WaitGroup
		for range 2 * slots {
			dials.Go(func() { a.Dial(ctx, l.URLs()[0]) })
		}
		dials.Wait()
	}
	accepts.Wait()
	require.NoError(t, failed)
}

// TestCausesAreKept checks that an error that the application gives as the cause of a cancellation
// or an Abort is kept whole in the resulting error, also if it is the error of another pipe or
// looks like that of a connection.
func TestCausesAreKept(t *testing.T) {
	foreign := &pipe.Error{Op: "read", Peer: "another peer", Conn: "reply", Err: pipe.ErrPeerLost}
	client, server := connect(t, memPath())
	ctx, cancel := context.WithCancelCause(testContext(t))
	op, _, _ := blockWriter(t, ctx, client, server)
	cancel(foreign)
	err := op.Wait(testContext(t))
	require.ErrorIs(t, err, pipe.ErrCancelled)
	require.ErrorContains(t, err, "another peer")
	var e *pipe.Error
	require.ErrorAs(t, err, &e)
	require.NotEqual(t, "another peer", e.Peer)

	client, server = connect(t, memPath())
	client.WriteAsync(testContext(t), message(1, nil, []int{32 << 20}))
	in, err := server.Next(testContext(t))
	require.NoError(t, err)
	read := make(chan error, 1)
	go func() { read <- in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())) }()
	server.Abort(context.DeadlineExceeded)
	if err := <-read; err != nil {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, pipe.ErrPeerLost)
	}
}

// TestUnconfirmedAtTheEndOfAPipe checks that WriteConfirmed fails with ErrUnconfirmed when its own
// end closes or aborts the pipe. After an abort the error also matches the cause.
func TestUnconfirmedAtTheEndOfAPipe(t *testing.T) {
	cause := errors.New("the application aborts")
	for name, end := range map[string]func(client *pipe.Pipe){
		"abort": func(client *pipe.Pipe) { client.Abort(cause) },
		"close": func(client *pipe.Pipe) { client.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := connect(t, memPath())
				result := make(chan error, 1)
				go func() { result <- client.WriteConfirmed(context.Background(), message(1, []int{10}, nil)) }()
				synctest.Wait()
				require.True(t, client.Confirms())
				end(client)
				err := <-result
				require.ErrorIs(t, err, pipe.ErrUnconfirmed)
				require.NotErrorIs(t, err, pipe.ErrPeerClosed)
				if name == "abort" {
					require.ErrorIs(t, err, cause)
				}
			})
		})
	}
}

// TestChannelFailsAfterClose checks that if a channel's Recv fails because this end has already
// answered the peer's close, Read returns ErrPeerLost, and Close of both ends succeeds.
func TestChannelFailsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := memPath()
		client, server := connect(t, path, func(o *pipe.Options) { o.Channels[0].Factory = closedOnRecv{basic.New()} })
		op := client.WriteAsync(t.Context(), message(1, nil, []int{10}, device.CPU()))
		in, err := server.Next(t.Context())
		require.NoError(t, err)
		err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
		require.ErrorIs(t, err, pipe.ErrPeerLost)
		require.NotErrorIs(t, err, pipe.ErrClosed)
		<-op.Done()
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
}

// closedOnRecv makes channels that find their connection closed in Recv.
type closedOnRecv struct{ channel.Factory }

func (f closedOnRecv) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	return closedOnRecvChannel{ch, link.Broken}, err
}

type closedOnRecvChannel struct {
	channel.Channel
	broken func(error)
}

func (c closedOnRecvChannel) Recv(_ uint64, _ device.Buffer, done func(error)) {
	go func() {
		c.Close(nil)
		done(channel.ErrClosed)
		c.broken(channel.ErrClosed)
	}()
}

// TestEmptyTensorsWithOpenTargets checks that messages with empty tensors and no target devices can
// be written without waiting for the receiver, several before the first is read, and arrive.
func TestEmptyTensorsWithOpenTargets(t *testing.T) {
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		for i := range 3 {
			write(t, client, message(i, nil, []int{0, 0}))
		}
		for i := range 3 {
			expect(t, server, message(i, nil, []int{0, 0}))
		}
		exchange(t, client, server, message(4, []int{1}, []int{10}))
	})
}
