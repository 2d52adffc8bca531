package channel_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// counting is a factory of channels that count the bytes they are given to send. All else is that
// of another factory. A pipe uses it if it is the Factory of a pipe.ChannelEntry.
type counting struct {
	channel.Factory
	sent *atomic.Int64
}

func (f counting) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	c, err := f.Factory.New(ctx, link, role)
	if err != nil {
		return nil, err
	}
	own := countingChannel{c, f.sent}
	if compatible, ok := c.(channel.Compatible); ok { // a pipe uses these methods too
		return struct {
			countingChannel
			channel.Compatible
		}{own, compatible}, nil
	}
	return own, nil
}

type countingChannel struct {
	channel.Channel
	sent *atomic.Int64
}

func (c countingChannel) Send(id uint64, src device.Buffer, done func(error)) {
	c.sent.Add(int64(src.Len()))
	c.Channel.Send(id, src, done)
}

// The two ends of a channel of the application's own move one tensor, as in a pipe: each has a link
// to the other, and done reports that the memory of a transfer is free.
func Example() {
	ctx := context.Background()
	var sent atomic.Int64
	var factory channel.Factory = counting{basic.New(), &sent}

	var network transport.Transport = mem.New(nil)
	l, err := network.Listen(ctx, "")
	must(err)
	defer l.Close()
	dialled, err := network.Dial(ctx, l.Addr())
	must(err)
	accepted, err := l.Accept(ctx)
	must(err)

	sender, err := factory.New(ctx, link(dialled), channel.RoleConnect)
	must(err)
	receiver, err := factory.New(ctx, link(accepted), channel.RoleListen)
	must(err)

	got := make([]byte, len("tensor"))
	done := make(chan error, 2)
	receiver.Recv(0, device.Bytes(got), func(err error) { done <- err })
	sender.Send(0, device.Bytes([]byte("tensor")), func(err error) { done <- err })
	must(<-done)
	must(<-done)
	fmt.Printf("%s: %d bytes sent\n", got, sent.Load())
	must(sender.Close(nil))
	must(receiver.Close(nil))
	// Output: tensor: 6 bytes sent
}

// link returns what a pipe provides to a channel in the compatible dialect.
func link(conn transport.Conn) channel.Link {
	return channel.Link{
		Conns: []transport.Conn{conn}, Peer: conn.RemoteAddr(),
		Broken: func(error) {}, // a pipe fails
		Logger: slog.New(slog.DiscardHandler),
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
