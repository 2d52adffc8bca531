package pipe_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// A client has one goroutine that is always in Next. A caller sends a request and then reads the
// messages of the pipe itself, with TryNext and NextCh, until its reply has arrived, so that the
// reply needs no switch of goroutines. The server reads and answers on one goroutine, which never
// blocks in Write, because the client may be waiting for it to read.
func Example_nonBlocking() {
	ctx := context.Background()
	c, client, server := openExamplePipe(ctx)
	defer c.Close()

	go func() { // the server
		for {
			in, err := server.Next(ctx)
			if err != nil {
				return
			}
			reply := &pipe.Message{Metadata: fmt.Appendf(nil, "reply to %s", in.Descriptor().Metadata)}
			if err := in.Read(ctx, pipe.NewAllocation(in.Descriptor())); err != nil {
				return
			}
			send(ctx, server, reply)
		}
	}()

	replies := make(chan string, 1)
	handle := func(in *pipe.Incoming) {
		receive := func() {
			text := string(in.Descriptor().Metadata)
			if in.Read(ctx, pipe.NewAllocation(in.Descriptor())) == nil {
				replies <- text
			}
		}
		if in.Inline() {
			receive() // does not wait for the peer
		} else {
			go receive()
		}
	}
	go func() { // the reader of the client, for messages that arrive while no caller waits
		for {
			in, err := client.Next(ctx)
			if err != nil {
				return
			}
			handle(in)
		}
	}()

	send(ctx, client, &pipe.Message{Metadata: []byte("request")})
	for {
		in, err := client.TryNext()
		if err != nil {
			fmt.Println(err)
			return
		}
		if in == nil {
			break // nothing has arrived: block
		}
		handle(in)
	}
	for {
		select {
		case in := <-client.NextCh():
			handle(in)
		case text := <-replies:
			fmt.Println(text)
			return
		case <-client.Done():
			fmt.Println(client.Err())
			return
		}
	}
	// Output: reply to request
}

// send sends m without blocking the caller: with TryWrite or, if TryWrite does not accept m, with
// Write on a new goroutine, which uses m after send has returned. Only messages that TryWrite
// accepts keep their order. Errors are ignored.
func send(ctx context.Context, p *pipe.Pipe, m *pipe.Message) {
	if taken, err := p.TryWrite(m); !taken && err == nil {
		go func() { _ = p.Write(ctx, m) }() // an error is that of the pipe, which Next returns too
	}
}

// openExamplePipe opens a pipe within this process and returns both of its ends. Closing the
// returned context closes both.
func openExamplePipe(ctx context.Context) (c *pipe.Context, client, server *pipe.Pipe) {
	c, err := pipe.New(pipe.Options{
		Transports: []pipe.TransportEntry{{Name: "mem", Transport: mem.New(nil)}},
		Channels:   []pipe.ChannelEntry{{Name: xth.Name, Factory: xth.New()}},
	})
	check(err)
	l, err := c.Listen(ctx, "mem://")
	check(err)
	client, err = c.Dial(ctx, l.URLs()[0])
	check(err)
	server, err = l.Accept(ctx)
	check(err)
	return c, client, server
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
