package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"os"
	"time"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// demo is the command that shows what the library does, without any set-up.
type demo struct {
	copies  int
	verbose bool
	json    bool
}

func demoEntry() entry {
	return entry{
		name:    "demo",
		usage:   "[flags]",
		summary: "send the weights of a network to a second process, which checks them",
		help: `Starts a second process and sends it the tensors of a safetensors file, the
weights of a small network, through a pipe over TCP. The receiver learns name,
type and shape of each tensor from the metadata, checks every byte by checksum,
writes the same file again, and reports back.`,
		make: func() command { return &demo{} },
	}
}

func (d *demo) flags(fs *flag.FlagSet) {
	fs.IntVar(&d.copies, "copies", 100, "`number` of times the weights are sent")
	verboseFlag(fs, &d.verbose)
	fs.BoolVar(&d.json, "json", false, "print the result as JSON")
}

func (d *demo) run(ctx context.Context, s streams) error {
	if d.copies < 1 || d.copies > maxCount {
		return usageErrorf("-copies %d: want 1 to %d", d.copies, maxCount)
	}
	w, err := loadWeights(weightsFile)
	if err != nil {
		return err
	}
	receiver, err := startReceiver(ctx)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer receiver.stop()
	r := &demoReport{
		Sender: os.Getpid(), Receiver: receiver.pid(), URL: receiver.url,
		Tensors: w.notes, FileSHA256: w.file, Copies: d.copies, Bytes: d.copies * w.bytes,
	}
	if err := errors.Join(d.transfer(ctx, w, r, s), receiver.stop()); err != nil {
		return interrupted(ctx, err)
	}
	if d.json {
		return r.printJSON(s.out)
	}
	r.print(s.out, w)
	return nil
}

// transfer sends the weights and waits for what the receiver says about them.
func (d *demo) transfer(ctx context.Context, w *weights, r *demoReport, s streams) error {
	c, err := tensorpipe.NewContext(pipe.Options{Name: "demo"})
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.Dial(ctx, r.URL)
	if err != nil {
		return err
	}
	r.Plan = p.Plan()
	if !d.json {
		r.printHead(s.out, d.verbose)
	}
	start := time.Now()
	sendErr := d.send(ctx, p, w)
	// A receiver that found a fault says so before it closes the pipe.
	v, err := receiveVerdict(ctx, p)
	if err != nil {
		return cmp.Or(sendErr, err)
	}
	r.took = time.Since(start)
	return v.accepts(w, d.copies)
}

func (d *demo) send(ctx context.Context, p *pipe.Pipe, w *weights) error {
	for i := range d.copies {
		m, err := w.message(i == d.copies-1)
		if err != nil {
			return err
		}
		if err := p.Write(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
