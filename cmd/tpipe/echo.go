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

// echo is the command echo, which sends every message back.
type echo struct {
	path   pathFlags
	tls    tlsFlags
	listen string
	limit  byteSize
	memory byteSize
}

var echoEntry = entry{
	name:    "echo",
	usage:   "[-listen HOST:PORT] [flags]",
	summary: "send every message back unchanged",
	help: `Sends every message back unchanged: metadata, payloads and tensors. A tensor for
which the sender named the target cpu:0 is sent back to that target; a tensor without a
target is sent back without one. Any number of pipes may be open.

Half of -memory is for messages with tensors and payloads. Further messages wait; after
a wait of 10 s the pipe that holds most is closed. The other half is for everything else
that peers send and for messages that they do not read; when it is used up, the pipes
that hold most of it are closed at once.

The first line printed is "listening on" and the URL to dial, in which a port of 0 of
-listen is replaced by the real one. Failed peers are reported on stderr. With shm in
-transport it also listens on shared memory: the handshake of a peer of this machine
that dials another URL switches to it.
The first SIGINT or SIGTERM closes all pipes in an orderly way, the second one ends the
program.`,
	make: func() command { return &echo{limit: defaultLimit, memory: min(4<<30, math.MaxInt)} },
}

// defaultLimit is the default of -limit.
const defaultLimit byteSize = 1 << 30

func (e *echo) flags(fs *flag.FlagSet) {
	fs.StringVar(&e.listen, "listen", "127.0.0.1:0", "`address` to listen on, HOST:PORT or a URL; several are separated by commas")
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
	opts.Limits.UnadmittedBytes = int(e.memory / 2) // an echo admits no peer
	opts.Limits.PipeBytesInFlight = int(e.memory / 8)
	opts.Logger = slog.New(slog.NewTextHandler(s.err, nil))
	c, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer c.Close()
	l, urls, err := listen(ctx, c, opts, splitAddresses(e.listen))
	if err != nil {
		return flagError("listen", err)
	}
	if _, err := fmt.Fprintln(s.out, "listening on", strings.Join(urls, " ")); err != nil {
		return err // without the URL no peer could dial it
	}
	return e.serve(ctx, c, l, opts.Logger)
}

// serve accepts pipes from l and echoes the messages of each on a goroutine, until ctx ends or
// accepting fails. Then it closes c, which owns l and the pipes, and waits until all pipes have
// ended. Failures of pipes are logged. The error joins that of accepting, unless ctx has ended, and
// that of closing c.
func (e *echo) serve(ctx context.Context, c *pipe.Context, l *pipe.Listener, log *slog.Logger) error {
	pool := tensor.NewPool(tensor.PoolOptions{IdleLimit: int(e.memory / 8)})
	memory := newEchoMemory(int(e.memory / 2))
	var serving sync.WaitGroup
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			err = errors.Join(acceptError(ctx, err), c.Close())
			serving.Wait()
			return err
		}
		if id := identify(p); id != nil {
			log.Info("pipe opened", "peer", p.Peer(), "address", p.RemoteAddr(), "tls", id)
		}
		serving.Go(func() {
			r := echoPipe{pipe: p, pool: pool, limit: int(e.limit), memory: memory}
			if err := r.run(); err != nil {
				log.Warn("pipe failed", "peer", p.Peer(), "address", p.RemoteAddr(), "error", err)
			}
		})
	}
}

// acceptError returns nil if ctx has ended, because the user has then ended the command, and
// otherwise err, the error of Accept.
func acceptError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// maxPendingEchoes bounds the number of messages that one pipe is sending back. Their bytes are
// bounded by the pipe.
const maxPendingEchoes = 64

// echoPipe sends the messages of one pipe back, on one goroutine. It reads further messages while
// earlier ones are being sent.
type echoPipe struct {
	pipe  *pipe.Pipe
	pool  tensor.Allocator
	limit int // bytes of one message
	sent  []pendingEcho

	memory *echoMemory // for the messages of all pipes
}

// pendingEcho is a message that is being sent back, with the operation that uses its memory.
type pendingEcho struct {
	op   *pipe.WriteOp
	copy *pooledMessage
}

// run echoes the messages of the pipe until one end closes it or an error occurs. Before it
// returns, it closes the pipe or, after an error, aborts it, waits for all writes to end, and
// releases all memory. It returns nil if one end has closed the pipe, and otherwise the error.
func (r *echoPipe) run() error {
	var err error
	for err == nil {
		err = r.next()
	}
	if errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrClosed) {
		err = nil
		r.pipe.Close()
	} else {
		r.pipe.Abort(err)
	}
	<-r.pipe.Done()
	for _, s := range r.sent {
		<-s.op.Done()
		r.release(s.copy)
	}
	return err
}

// next waits for the next message, reads it, and starts to send it back, without waiting for that
// to end. Before it reads, it waits until memory for the message is available. It fails if the
// message is longer than the limit. It returns nil without sending anything if the sender aborts
// the message. Otherwise the error is that of the pipe or of the memory pool.
func (r *echoPipe) next() error {
	ctx := context.Background() // closing the pipe's Context ends the calls below
	in, err := r.pipe.Next(ctx)
	if err != nil {
		return err
	}
	size := in.Descriptor().Bytes()
	if size > r.limit { // before any memory is allocated
		return fmt.Errorf("message of %s, the -limit is %s", byteSize(size), byteSize(r.limit))
	}
	if err := r.reclaim(maxPendingEchoes - 1); err != nil {
		return err
	}
	if err := r.reserve(size); err != nil {
		return err
	}
	p, err := newPooledMessage(r.pool, in.Descriptor())
	if err != nil {
		r.memory.release(r.pipe, size)
		return err
	}
	if err := in.Read(ctx, p.memory); err != nil {
		r.release(p)
		if errors.Is(err, pipe.ErrAborted) {
			return nil
		}
		return err
	}
	op := r.pipe.WriteAsync(ctx, p.message)
	r.sent = append(r.sent, pendingEcho{op, p})
	return op.Err()
}

// reserve acquires n bytes of the memory that all pipes share. While they are not available, it
// first waits for echoes of this pipe to be sent and releases their memory, oldest first, and then
// waits for other pipes. The error is that of such an echo's write, or that of the pipe if it ends.
func (r *echoPipe) reserve(n int) error {
	for len(r.sent) > 0 {
		if r.memory.tryAcquire(r.pipe, n) {
			return nil
		}
		if err := r.reclaim(len(r.sent) - 1); err != nil {
			return err
		}
	}
	return r.memory.acquire(r.pipe, n)
}

// release gives the memory of p back to the pool, and gives its bytes back to the memory that all
// pipes share. No read or write may be using p, and p must not be used afterwards.
func (r *echoPipe) release(p *pooledMessage) {
	p.release()
	r.memory.release(r.pipe, p.size)
}

// reclaim releases the memory of echoes that have been sent, oldest first, up to the first that has
// not been sent yet. It blocks while more than keep echoes are not released. If the write of an
// echo has failed it stops and returns the write's error, without releasing that echo.
func (r *echoPipe) reclaim(keep int) error {
	for len(r.sent) > 0 {
		first := r.sent[0]
		if len(r.sent) <= keep {
			select {
			case <-first.op.Done():
			default:
				return nil
			}
		}
		if err := first.op.Wait(context.Background()); err != nil {
			return err
		}
		r.release(first.copy)
		r.sent = r.sent[1:]
	}
	return nil
}
