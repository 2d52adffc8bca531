package tensorpipe_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// Two ends of a pipe in one process, which share one context, exchange a message.
func ExampleNewContext() {
	ctx := context.Background()
	c, err := tensorpipe.NewContext(pipe.Options{Name: "worker0"})
	check(err)
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	check(err)
	client, err := c.Dial(ctx, l.URLs()[0])
	check(err)
	server, err := l.Accept(ctx)
	check(err)

	check(client.Write(ctx, &pipe.Message{
		Metadata: []byte("greeting"),
		Payloads: []pipe.Payload{{Data: []byte("hello")}},
	}))
	in, err := server.Next(ctx)
	check(err)
	memory := pipe.NewAllocation(in.Descriptor())
	check(in.Read(ctx, memory))
	fmt.Printf("%s from %s over %s: %s\n", in.Descriptor().Metadata, server.Peer(), server.Plan().Transport, memory.Payloads[0])
	// Output: greeting from worker0 over uv: hello
}

// A profile is changed before it is used: it gets a transport within one process, which is
// preferred to TCP because of its higher priority.
func ExampleProfile() {
	ctx := context.Background()
	profile := tensorpipe.DefaultProfile()
	profile.Transports = append(profile.Transports, pipe.TransportEntry{Name: "mem", Priority: 500, Transport: mem.New(nil)})
	c, err := profile.NewContext(pipe.Options{})
	check(err)
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0", "mem://inside")
	check(err)
	p, err := c.Dial(ctx, l.URLs()[1])
	check(err)
	fmt.Println(p.Plan().Transport)
	// Output: mem
}

// The policy requires the channel mpt_uv of PyTorch's profile, so that tensors are sent over
// several TCP connections even if the two processes could read each other's memory. Opening a pipe
// fails if the other end does not have this channel.
func ExampleTorchProfile() {
	ctx := context.Background()
	c, err := tensorpipe.TorchProfile().NewContext(pipe.Options{
		Policy: pipe.Policy{Channels: pipe.Rule{Prefer: []string{"mpt_uv"}, Require: []string{"mpt_uv"}}},
	})
	check(err)
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	check(err)
	p, err := c.Dial(ctx, l.URLs()[0])
	check(err)
	channel, _ := p.Plan().Channel(device.CPU(), device.CPU())
	fmt.Println(p.Plan().Dialect, channel)
	// Output: native mpt_uv
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
