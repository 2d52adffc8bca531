package pipe_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A message that a channel could not bring is given up, and nothing comes to it any
// more when Read returns: it may be released, and be another one.
func TestNativeFailedMessageIsReleasedAtOnce(t *testing.T) {
	client, server := connect(t, nativePath(), func(o *pipe.Options) {
		o.Channels[0].Factory = clumsy{basic.New()}
	})
	for i := range 300 {
		op := client.WriteAsync(testContext(t), message(i, nil, []int{100_000}, device.CPU()))
		in := next(t, server)
		require.ErrorIs(t, in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())), errEnough)
		in.Release()
		require.NoError(t, op.Wait(testContext(t)), "the peer was told")
		op = client.WriteAsync(testContext(t), message(i, []int{100_000}, nil))
		in = next(t, server)
		read(t, in)
		in.Release()
		require.NoError(t, op.Wait(testContext(t)))
	}
}

// clumsy makes channels that fail to receive anything.
type clumsy struct{ channel.Factory }

func (f clumsy) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	return clumsyChannel{ch}, err
}

type clumsyChannel struct{ channel.Channel }

func (c clumsyChannel) Recv(_ uint64, _ device.Buffer, done func(error)) { go done(errEnough) }

// Close discards what waits for memory, and leaves alone what is being read and
// released meanwhile.
func TestNativeCloseWhileMessagesAreReleased(t *testing.T) {
	p := nativePath()
	a, b := newContext(t, p), newContext(t, p)
	l, err := b.Listen(testContext(t), p.url)
	require.NoError(t, err)
	const unread, readers = 200, 20
	for range 10 {
		client, err := a.Dial(testContext(t), l.URLs()[0])
		require.NoError(t, err)
		server, err := l.Accept(testContext(t))
		require.NoError(t, err)
		for range unread + readers {
			client.WriteAsync(testContext(t), message(1, []int{100_000}, nil))
		}
		var reading sync.WaitGroup
		for k := range unread + readers {
			in := next(t, server)
			if k%(1+unread/readers) > 0 {
				continue
			}
			reading.Go(func() {
				// The peer may be closing already.
				_ = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor()))
				in.Release()
			})
		}
		reading.Go(func() { require.NoError(t, client.Close()) })
		require.NoError(t, server.Close())
		reading.Wait()
	}
}
