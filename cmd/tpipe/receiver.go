package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// receiver is the second process of a demo. It lives no longer than the first
// one: its stdin ends with that.
type receiver struct{}

const receiverName = "demo-receiver"

func receiverEntry() entry {
	return entry{
		name:    receiverName,
		summary: "the second process of a demo",
		help:    "Receives what tpipe demo sends, which starts it.",
		hidden:  true,
		make:    func() command { return &receiver{} },
	}
}

func (*receiver) flags(*flag.FlagSet) {}

// errNoSender: the process that wanted all of this has closed our stdin, on
// purpose or because it died.
var errNoSender = errors.New("the sender has gone")

func (*receiver) run(ctx context.Context, s streams) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		_, _ = io.Copy(io.Discard, s.in)
		cancel(errNoSender)
	}()
	err := serveSender(ctx, s.out)
	if context.Cause(ctx) == errNoSender {
		return nil // nobody is left to be told
	}
	return interrupted(ctx, err)
}

// serveSender prints where it listens and serves the first pipe.
func serveSender(ctx context.Context, out io.Writer) error {
	c, err := tensorpipe.NewContext(pipe.Options{
		Name: receiverName,
		// Any process of this machine could come instead of the sender.
		Limits: pipe.Limits{TensorBytes: len(weightsFile), PayloadBytes: 1, Tensors: 64},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.URLs()[0])
	p, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return receive(ctx, p)
}

// receive takes copies until the last one or the first fault, and reports.
func receive(ctx context.Context, p *pipe.Pipe) error {
	var v verdict
	for last := false; !last && v.Fault == ""; {
		in, err := p.Next(ctx)
		if err != nil {
			return err
		}
		memory := pipe.NewAllocation(in.Descriptor())
		if err := in.Read(ctx, memory); err != nil {
			return err
		}
		last = v.judge(in.Descriptor(), memory)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := p.Write(ctx, &pipe.Message{Metadata: text}); err != nil {
		return err
	}
	return p.Close()
}
