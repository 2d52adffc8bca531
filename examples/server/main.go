// Command server keeps named tensors and hands them out to whoever asks, as a
// parameter server does: one pipe per client, many clients at once. A request
// is a message with a name, the answer a message with the tensor, and its shape
// as metadata.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// run starts a server and asks it for some tensors, each from a client of its
// own.
func run(ctx context.Context, out io.Writer) error {
	weight, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		return err
	}
	c, err := tensorpipe.NewContext(pipe.Options{
		Name: "server",
		// A pipe that would have to take another path fails when it is opened.
		Policy: pipe.Policy{Transports: pipe.Rule{Require: []string{"uv"}}},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	if err != nil {
		return err
	}
	s := store{"weight": weight, "bias": tensor.Scalar(float32(0.5))}
	var serving sync.WaitGroup
	serving.Go(func() { s.serve(ctx, l) })
	err = ask(ctx, c, l.URLs()[0], out, "weight", "bias", "colour")
	err = errors.Join(err, l.Close())
	serving.Wait()
	return err
}

// store is the tensors that a server hands out. They do not change.
type store map[string]*tensor.Tensor

// serve answers the clients that come, until the listener is closed and the
// last of them has gone.
func (s store) serve(ctx context.Context, l *pipe.Listener) {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			return
		}
		clients.Go(func() {
			err := s.answer(ctx, p)
			if !errors.Is(err, pipe.ErrPeerClosed) {
				fmt.Fprintln(os.Stderr, "server:", err)
			}
			p.Close()
		})
	}
}

// answer serves one client until the pipe ends.
func (s store) answer(ctx context.Context, p *pipe.Pipe) error {
	for {
		in, err := p.Next(ctx)
		if err != nil {
			return err
		}
		name := in.Descriptor().Metadata
		if err := in.Discard(ctx); err != nil { // nothing but the name is of interest
			return err
		}
		m, err := s.reply(string(name))
		if err != nil {
			return err
		}
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
}

// reply is a message without a tensor if there is none of that name.
func (s store) reply(name string) (*pipe.Message, error) {
	t, found := s[name]
	if !found {
		return &pipe.Message{Metadata: []byte("there is no " + name)}, nil
	}
	buf, err := t.Buffer()
	if err != nil {
		return nil, err
	}
	return &pipe.Message{
		Metadata: []byte(name),
		Tensors:  []pipe.Tensor{{Buffer: buf, TargetDevice: device.CPU(), Metadata: []byte(t.String())}},
	}, nil
}
