package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// echo is the command that sends messages back.
type echo struct {
	path   pathFlags
	tls    tlsFlags
	listen string
	limit  byteSize
	memory byteSize
}

func echoEntry() entry {
	return entry{
		name:    "echo",
		usage:   "[-listen URL] [flags]",
		summary: "send every message back as it came",
		help: `Sends every message back as it came: metadata, payloads and tensors. A tensor
for which the sender named cpu:0 goes back with that name, one that left the
choice open goes back open. Any number of pipes may be open.

Half of the -memory is for messages with tensors and payloads: further ones wait,
and when one has waited for 10 s the pipe that holds most is closed. The other
half is for all else that peers send and do not take in; when it is used up the
pipes that hold most of that are closed at once.

The first line printed is "listening on" and the URL to dial; a port of 0 in
-listen has become a real one there. Peers that fail are reported on stderr.
With shm in -transport it takes shared memory too: peers of this machine that
dial another URL are moved there.
A first SIGINT or SIGTERM closes all pipes in an orderly way, a second one ends
the program.`,
		make: func() command { return &echo{limit: defaultLimit, memory: min(4<<30, math.MaxInt)} },
	}
}

// defaultLimit is the size of messages that nobody thought about.
const defaultLimit byteSize = 1 << 30

func (e *echo) flags(fs *flag.FlagSet) {
	fs.StringVar(&e.listen, "listen", "uv://127.0.0.1:0", "`url` to listen on; several are separated by commas")
	fs.Var(&e.limit, "limit", "largest message to take, a `size`; a pipe that gets a larger one is closed")
	fs.Var(&e.memory, "memory", "memory that all pipes together may take, a `size`, at least twice the -limit")
	e.tls.listenFlags(fs)
	e.path.flags(fs)
}

func (e *echo) run(ctx context.Context, s streams) error {
	tls, err := e.tls.listen()
	if err != nil {
		return err
	}
	opts, err := e.path.options(tls...)
	if err != nil {
		return err
	}
	if e.memory/2 < e.limit {
		return usageErrorf("-memory %s: want at least twice the -limit of %s", e.memory, e.limit)
	}
	opts.Name = "tpipe echo"
	opts.Limits.UnadmittedBytes = int(e.memory / 2) // no peer is ever admitted
	opts.Limits.PipeBytesInFlight = int(e.memory / 8)
	opts.Logger = slog.New(slog.NewTextHandler(s.err, nil))
	c, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer c.Close()
	l, urls, err := listen(ctx, c, opts, strings.Split(e.listen, ","))
	if err != nil {
		return blame("listen", err)
	}
	if _, err := fmt.Fprintln(s.out, "listening on", strings.Join(urls, " ")); err != nil {
		return err // nobody would find it
	}
	return e.serve(ctx, c, l, opts.Logger)
}

// serve echoes on all pipes that come until ctx ends, then closes them.
func (e *echo) serve(ctx context.Context, c *pipe.Context, l *pipe.Listener, log *slog.Logger) error {
	pool := tensor.NewPool(tensor.PoolOptions{IdleLimit: int(e.memory / 8)})
	memory := newEchoMemory(int(e.memory / 2))
	var serving sync.WaitGroup
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			err = errors.Join(whyAcceptFailed(ctx, err), c.Close())
			serving.Wait()
			return err
		}
		if id := identify(p); id != nil {
			log.Info("pipe opened", "peer", p.Peer(), "address", p.RemoteAddr(), "tls", id)
		}
		serving.Go(func() {
			r := returner{pipe: p, pool: pool, limit: int(e.limit), memory: memory}
			if err := r.run(); err != nil {
				log.Warn("pipe failed", "peer", p.Peer(), "address", p.RemoteAddr(), "error", err)
			}
		})
	}
}

// whyAcceptFailed is nil where the user wanted the end.
func whyAcceptFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
