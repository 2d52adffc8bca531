package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// ping is the command that measures round trips to an echo.
type ping struct {
	path     pathFlags
	tls      tlsFlags
	to       string
	count    int
	size     byteSize
	payloads int
	tensors  int
	named    bool
	check    bool
	seed     uint64
	limit    byteSize
	timeout  time.Duration
	verbose  bool
	json     bool
}

func pingEntry() entry {
	return entry{
		name:    "ping",
		usage:   "-to URL [flags]",
		summary: "measure round trips to an echo, or check what it sends back",
		help: `Sends messages to an echo (tpipe echo, or the one of a C++ program), one after
the other, and prints the path that the pipe takes and how long the messages
took to come back whole. The rate counts each byte once, though it travels there
and back. Before the first trip that counts there are a few that do not.

With -check each message has a random shape: up to -payloads payloads and
-tensors tensors (4 of each unless said otherwise) of up to -size bytes, empty
ones among them, with random metadata. Every byte that comes back is compared;
the first difference ends the command with exit code 1.

SIGINT prints what was measured so far.`,
		make: func() command { return &ping{size: 64 << 10, payloads: unset, tensors: unset, limit: defaultLimit} },
	}
}

func (p *ping) run(ctx context.Context, s streams) error {
	p.complete()
	if err := p.validate(); err != nil {
		return err
	}
	tls, err := p.tls.dial()
	if err != nil {
		return err
	}
	opts, err := p.path.options(tls...)
	if err != nil {
		return err
	}
	opts.Name = "tpipe ping"
	opts.HandshakeTimeout = p.timeout
	c, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, err := c.Dial(ctx, p.to)
	if err != nil {
		return interrupted(ctx, blame("to", err))
	}
	return p.measure(ctx, conn, s)
}

// measure makes the round trips and prints the result, also of a part of them.
func (p *ping) measure(ctx context.Context, conn *pipe.Pipe, s streams) error {
	r := newPingReport(p, conn)
	if !p.json {
		r.printHead(s.out, p.verbose)
	}
	err := p.trips(ctx, conn, r, newProgress(s.err, p.count))
	if err != nil {
		conn.Abort(err)
		err = interrupted(ctx, err)
	} else {
		conn.Close() // an echo that stays open changes nothing about the result
	}
	r.finish(err)
	if p.json {
		return errors.Join(err, r.printJSON(s.out))
	}
	r.print(s.out)
	return err
}

// trips makes the round trips and counts them in r.
func (p *ping) trips(ctx context.Context, conn *pipe.Pipe, r *pingReport, show *progress) error {
	defer show.clear()
	t := newTripper(ctx, conn, p.timeout, p.check)
	defer t.stop()
	load := newLoad(p)
	x, err := load.next()
	if err != nil {
		return err
	}
	for i := -p.warmUp(); i < p.count; i++ {
		took, err := t.trip(x)
		if err != nil {
			return fmt.Errorf("round trip %d of %d: %w", max(i, 0)+1, p.count, err)
		}
		if i >= 0 {
			r.add(x, took)
			show.at(i + 1)
		}
		if x, err = p.following(load, x); err != nil {
			return err
		}
	}
	return nil
}

// warmUp is the number of round trips that do not count, in which both ends
// touch their memory for the first time.
func (p *ping) warmUp() int {
	if p.check {
		return 0
	}
	return min(p.count/10, 10)
}

// following is the message after x, which is x itself where all are alike.
func (p *ping) following(l *load, x *exchange) (*exchange, error) {
	if !p.check {
		return x, nil
	}
	x.release()
	return l.next()
}

// interrupted replaces what a signal did to a call by the signal.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}
