package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// ask opens a pipe for each name, all at the same time, and prints what comes
// back in the order of the names.
func ask(ctx context.Context, c *pipe.Context, url string, out io.Writer, names ...string) error {
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

// request asks for one tensor and describes the answer.
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

// big is more than any answer of this server has.
const big = 1 << 20

// allocate makes memory for a message from an allocator of the application. It
// looks at the sizes first: the peer wrote them.
func allocate(d *pipe.Descriptor) (pipe.Allocation, error) {
	var a pipe.Allocation
	for _, t := range d.Tensors {
		if t.Length > big || len(d.Payloads) > 0 {
			return a, errors.New("that is no answer of the server")
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
