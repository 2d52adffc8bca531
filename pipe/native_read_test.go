package pipe_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestNativeInlineTensorToDevice checks that Read enqueues the copy of an inline tensor on the
// stream of the device buffer and returns. The copy has the right bytes even if it runs after the
// message was released and others have reused its memory.
func TestNativeInlineTensorToDevice(t *testing.T) {
	kind := npu.NewKind()
	t.Cleanup(kind.Close)
	client, server := connect(t, nativePath(), func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(kind, basic.New())})
		o.Kinds = []device.Kind{kind}
	})
	dst, consume := alloc(t, kind, 0, 1000)
	release := consume.Hold()
	small := func(seed int) *pipe.Message {
		return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(pattern(1000, seed))}}}
	}
	write(t, client, small(1))
	in := next(t, server)
	require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{dst}}))
	in.Release()
	for seed := range 50 {
		write(t, client, small(2+seed))
		in := next(t, server)
		read(t, in)
		in.Release()
	}
	release()
	got := make([]byte, 1000)
	require.NoError(t, kind.Read(got, dst))
	require.NoError(t, consume.Synchronize(testContext(t)))
	require.Equal(t, pattern(1000, 1), got)
}

// TestNativeFailedReadReleasesMessage checks that if a channel fails to receive a part, Read
// returns the channel's error and the write completes without an error. The message can be released
// as soon as Read returns; later messages that reuse its memory arrive intact.
func TestNativeFailedReadReleasesMessage(t *testing.T) {
	client, server := connect(t, nativePath(), func(o *pipe.Options) {
		o.Channels[0].Factory = failingRecv{basic.New()}
	})
	for i := range 300 {
		op := client.WriteAsync(testContext(t), message(i, nil, []int{100_000}, device.CPU()))
		in := next(t, server)
		require.ErrorIs(t, in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())), errEnough)
		in.Release()
		require.NoError(t, op.Wait(testContext(t)), "the peer cancelled it")
		op = client.WriteAsync(testContext(t), message(i, []int{100_000}, nil))
		in = next(t, server)
		read(t, in)
		in.Release()
		require.NoError(t, op.Wait(testContext(t)))
	}
}

// failingRecv is a channel factory whose channels fail every Recv.
type failingRecv struct{ channel.Factory }

func (f failingRecv) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	return failingRecvChannel{ch}, err
}

type failingRecvChannel struct{ channel.Channel }

func (c failingRecvChannel) Recv(_ uint64, _ device.Buffer, done func(error)) { go done(errEnough) }

// TestNativeCloseWhileMessagesAreReleased checks that Close discards the messages that no Read has
// claimed. It does not touch messages that other goroutines read and release at the same time, and
// both ends close without an error.
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

// recvAfterAbort is a channel factory whose channels receive a tensor only after its transfer has
// been aborted.
type recvAfterAbort struct {
	channel.Factory
	before func() // called at the beginning of Recv
}

func (f recvAfterAbort) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	c, err := f.Factory.New(ctx, link, role)
	return &recvAfterAbortChannel{Channel: c, before: f.before, aborted: make(chan struct{})}, err
}

type recvAfterAbortChannel struct {
	channel.Channel
	before  func()
	once    sync.Once
	aborted chan struct{}
}

func (c *recvAfterAbortChannel) Recv(id uint64, b device.Buffer, done func(error)) {
	c.before()
	<-c.aborted
	c.Channel.Recv(id, b, done)
}

func (c *recvAfterAbortChannel) Abort(id uint64, cause error) {
	c.Channel.Abort(id, cause)
	c.once.Do(func() { close(c.aborted) })
}

// TestNativeAbortDuringRecv checks that if the sender aborts a message while Read passes its memory
// to a channel, Read returns ErrAborted, the write returns the cause, and the pipe stays up.
func TestNativeAbortDuringRecv(t *testing.T) {
	path := nativePath()
	ctx, cancel := cancelled(t)
	a := newContext(t, path)
	b := newContext(t, path, func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: recvAfterAbort{basic.New(), cancel}}}
	})
	client, server := connectContexts(t, a, b, path.url)
	op := client.WriteAsync(ctx, message(1, nil, []int{1 << 20}, device.CPU()))
	in := next(t, server)
	err := in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
	require.ErrorIs(t, err, pipe.ErrAborted)
	require.ErrorIs(t, op.Wait(testContext(t)), errEnough)
	exchange(t, server, client, message(2, []int{1}, nil))
}
