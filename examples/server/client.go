package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// requestAll requests the tensor with each name from the server at url, each on its own pipe and
// concurrently, and prints the replies to out in the order of names. It returns the errors of the
// requests joined, or nil.
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

// request opens a pipe to the server at url, requests the tensor with that name, closes the pipe,
// and returns a line that describes the reply. The error is that of the pipe or of allocate.
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

var errNoReply = errors.New("not a reply of the server")

// allocate returns new memory on the host for the tensors of the message that d describes. It first
// checks their sizes, because these come from the peer: it fails if a tensor exceeds maxTensor, or
// if the message has payloads, so that it cannot be a reply of the server.
func allocate(d *pipe.Descriptor) (pipe.Allocation, error) {
	var a pipe.Allocation
	if len(d.Payloads) > 0 {
		return a, errNoReply
	}
	for _, t := range d.Tensors {
		if t.Length > maxTensor {
			return a, errNoReply
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
