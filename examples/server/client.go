package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// requestAll requests each name from the server at url on its own pipe, concurrently, and prints the
// replies to out in the order of the names. It returns the errors joined.
func requestAll(ctx context.Context, c *pipe.Context, url string, out io.Writer, names ...string) error {
	type result struct {
		text string
		err  error
	}
	results := make([]chan result, len(names))
	for i, name := range names {
		results[i] = make(chan result, 1)
		go func() {
			text, err := request(ctx, c, url, name)
			results[i] <- result{text, err}
		}()
	}
	var errs []error
	for i := range names {
		r := <-results[i]
		errs = append(errs, r.err)
		if r.err == nil {
			fmt.Fprintln(out, r.text)
		}
	}
	return errors.Join(errs...)
}

// request opens a pipe to the server at url, requests the tensor of that name, and returns a
// description of the reply. It closes the pipe.
func request(ctx context.Context, c *pipe.Context, url, name string) (string, error) {
	p, err := c.Dial(ctx, url)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if err := p.Write(ctx, &pipe.Message{Metadata: []byte(name)}); err != nil {
		return "", err
	}
	in, err := p.Next(ctx)
	if err != nil {
		return "", err
	}
	d := in.Descriptor()
	memory, err := allocate(d)
	if err != nil {
		return "", err
	}
	if err := in.Read(ctx, memory); err != nil {
		return "", err
	}
	text := string(d.Metadata)
	for i, t := range d.Tensors {
		text += fmt.Sprintf(": %s, %d bytes on %s", t.Metadata, memory.Tensors[i].Len(), memory.Tensors[i].Device())
	}
	return text, nil
}

// maxTensor bounds the size of a tensor that the client accepts.
const maxTensor = 1 << 20

// allocate returns memory from an allocator of the application for a message that d describes. It
// checks the sizes first, because they come from the peer, and fails if the message cannot be a reply
// of the server.
func allocate(d *pipe.Descriptor) (pipe.Allocation, error) {
	var a pipe.Allocation
	for _, t := range d.Tensors {
		if t.Length > maxTensor || len(d.Payloads) > 0 {
			return a, errors.New("not a reply of the server")
		}
		s, err := tensor.Heap{}.Alloc(t.Length)
		if err != nil {
			return a, err
		}
		buf, err := s.Buffer()
		if err != nil {
			return a, err
		}
		a.Tensors = append(a.Tensors, buf)
	}
	return a, nil
}
