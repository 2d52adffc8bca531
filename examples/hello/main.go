// Command hello sends a tensor through a pipe. Both ends are in this process; they could run on two
// machines, and one of them in C++.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func main() {
	if err := hello(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

// hello opens a pipe from this process to itself, sends a tensor through it, prints the received
// tensor to out, and closes the pipe. It returns the errors of both ends joined, or the error of
// making the context or the listener.
func hello(ctx context.Context, out io.Writer) error {
	c, err := tensorpipe.NewContext(pipe.Options{Name: "hello"})
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { sent <- send(ctx, c, l.URLs()[0]) }()
	p, err := l.Accept(ctx)
	if err != nil {
		return errors.Join(err, <-sent)
	}
	err = receive(ctx, p, out)
	return errors.Join(err, p.Close(), <-sent)
}

func send(ctx context.Context, c *pipe.Context, url string) error {
	x, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		return err
	}
	buf, err := x.Buffer()
	if err != nil {
		return err
	}
	p, err := c.Dial(ctx, url)
	if err != nil {
		return err
	}
	err = p.Write(ctx, &pipe.Message{
		Metadata: []byte("step 1"),
		Tensors:  []pipe.Tensor{{Buffer: buf, TargetDevice: device.CPU(), Metadata: []byte("weight")}},
	})
	return errors.Join(err, p.Close())
}

func receive(ctx context.Context, p *pipe.Pipe, out io.Writer) error {
	in, err := p.Next(ctx) // the description comes first
	if err != nil {
		return err
	}
	d := in.Descriptor()
	memory := pipe.NewAllocation(d) // or memory of your own, on any device
	if err := in.Read(ctx, memory); err != nil {
		return err
	}
	for i, t := range d.Tensors {
		x, err := tensor.FromBuffer(memory.Tensors[i], tensor.F32, t.Length/4)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s is %s\n", d.Metadata, t.Metadata, x)
	}
	return nil
}
