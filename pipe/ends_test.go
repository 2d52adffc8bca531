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
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// An end that closes while the other is in the middle of big messages loses
// neither what it sent nor the orderly end.
func TestCloseWhilePeerPushes(t *testing.T) {
	size := race.Pick(64<<20, 16<<20)
	onEveryPath(t, func(t *testing.T, client, server *pipe.Pipe) {
		for i := range 8 {
			write(t, server, message(i, []int{1000}, nil))
		}
		against := client.WriteAsync(testContext(t), message(2, []int{size}, []int{size}, device.CPU()))
		require.NoError(t, server.Close())
		<-against.Done()
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
	for _, spoil := range []func(*pipe.Options){
		func(o *pipe.Options) { o.Limits.AcceptBacklog = -1 },
		func(o *pipe.Options) { o.Limits.ReadAheadMessages = -1 },
		func(o *pipe.Options) { o.Limits.MessageBytes = -5 },
		func(o *pipe.Options) { o.HandshakeTimeout = -1 },
		func(o *pipe.Options) { o.CloseTimeout = -1 },
	} {
		o := memPath().opts()
		spoil(&o)
		_, err := pipe.New(o)
		require.ErrorIs(t, err, pipe.ErrOptions)
	}
}

// Pipes that are being opened do not take the places that their further
// connections need: however many dial, the places are worth their number of
// pipes. A single dial may be turned away, or lose a connection to the crowd.
func TestManyDialsWithFewPlaces(t *testing.T) {
	const places = 4
	path := memPath()
	a := newContext(t, path)
	b := newContext(t, path, func(o *pipe.Options) { o.Limits.HandshakesInProgress = places })
	l, err := b.Listen(testContext(t), path.url)
	require.NoError(t, err)
	var accepting sync.WaitGroup
	var failed error
	ctx, enough := context.WithCancel(testContext(t))
	accepting.Go(func() {
		defer enough()
		for i := 0; i < places && failed == nil; i++ {
			_, failed = l.Accept(ctx)
		}
	})
	for ctx.Err() == nil {
		var dials sync.WaitGroup
		for range 2 * places {
			dials.Go(func() { a.Dial(ctx, l.URLs()[0]) })
		}
		dials.Wait()
	}
	accepting.Wait()
	require.NoError(t, failed)
}

// What an application gives as a cause is kept whole, also when it is the error
// of another pipe or looks like one of a connection.
func TestCausesAreKept(t *testing.T) {
	foreign := &pipe.Error{Op: "read", Peer: "somebody else", Conn: "reply", Err: pipe.ErrPeerLost}
	client, server := connect(t, memPath())
	ctx, cancel := context.WithCancelCause(testContext(t))
	op, _, _ := clog(t, ctx, client, server)
	cancel(foreign)
	err := op.Wait(testContext(t))
	require.ErrorIs(t, err, pipe.ErrCancelled)
	require.ErrorContains(t, err, "somebody else")
	var e *pipe.Error
	require.ErrorAs(t, err, &e)
	require.NotEqual(t, "somebody else", e.Peer)

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

// A wait for a confirmation ends with the pipe, whoever ends it, and says so.
func TestUnconfirmedAtTheEndOfAPipe(t *testing.T) {
	cause := errors.New("changed my mind")
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

// A channel that has something to say after this end has said its last to a peer
// that closed, breaks. That is the peer's end, and Close need not wait for another.
func TestChannelIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := memPath()
		client, server := connect(t, path, func(o *pipe.Options) { o.Channels[0].Factory = late{basic.New()} })
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

// late makes channels that find their connection closed when they receive.
type late struct{ channel.Factory }

func (f late) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	return lateChannel{ch, link.Broken}, err
}

type lateChannel struct {
	channel.Channel
	broken func(error)
}

func (c lateChannel) Recv(_ uint64, _ device.Buffer, done func(error)) {
	go func() {
		c.Close(nil)
		done(channel.ErrClosed)
		c.broken(channel.ErrClosed)
	}()
}

// A message that only leaves the devices of empty tensors open has left before
// the reply comes.
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
