// Command server sends named tensors to its clients, as a parameter server does: one pipe per
// client, many clients concurrently. A request is a message with a name; the reply is a message
// with the tensor, with its shape as metadata.
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

// run starts a server, requests some tensors from it, each on a pipe of its own, prints the replies
// to out, and stops the server. It returns the first error of starting, or those of the requests
// and of closing joined.
func run(ctx context.Context, out io.Writer) error {
	weight, err := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		return err
	}
	c, err := tensorpipe.NewContext(pipe.Options{
		Name: "server",
		// Opening a pipe fails if it would have to use another transport.
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
	err = requestAll(ctx, c, l.URLs()[0], out, "weight", "bias", "colour")
	err = errors.Join(err, l.Close())
	serving.Wait()
	return err
}

// store is the tensors of the server, by name. It must not be modified while the server runs.
type store map[string]*tensor.Tensor

// serve accepts pipes from l and serves each client on a goroutine, until Accept fails, as it does
// once l is closed or ctx ends. It returns after the last client has disconnected. It prints an
// error of a client to stderr, unless the client has closed its pipe.
func (s store) serve(ctx context.Context, l *pipe.Listener) {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			return
		}
		clients.Go(func() {
			err := s.serveClient(ctx, p)
			if !errors.Is(err, pipe.ErrPeerClosed) {
				fmt.Fprintln(os.Stderr, "server:", err)
			}
			p.Close()
		})
	}
}

// serveClient replies to the requests of one client until the pipe ends or a request fails, and
// returns the error, which is never nil: it matches pipe.ErrPeerClosed if the client has closed the
// pipe. The caller closes p.
func (s store) serveClient(ctx context.Context, p *pipe.Pipe) error {
	for {
		in, err := p.Next(ctx)
		if err != nil {
			return err
		}
		name := in.Descriptor().Metadata
		if err := in.Discard(ctx); err != nil { // only the name is needed
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

// reply returns the reply to a request for the tensor with that name. The reply shares the memory
// of the tensor. If s has no such tensor, the reply is a message without tensors, with the reason
// as metadata. The error is that of getting the tensor's memory, for example because it is not
// contiguous.
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
