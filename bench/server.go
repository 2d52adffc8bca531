package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// Sizes up to which the native dialect sends a tensor inline: over TCP, and through shared memory; and eagerly
// over TCP.
const (
	inlineBytes = 64 << 10
	ringBytes   = 1 << 20
	eagerBytes  = 4 << 20
)

// server serves the batches of one pipe, on one goroutine.
type server struct {
	pipe        *pipe.Pipe
	eager       bool // tensors may be eager
	pool        *memoryPool
	memory      memory // during a batch
	replies     []*pipe.Message
	allocations []pipe.Allocation
	reads       []int64 // when the messages of a timed batch had been read, by the wall clock
}

// serve runs the batches that the client of p announces, in memory from pool. eager is true if tensors may be eager.
// When the client has closed p, serve closes this end and returns the result of p.Close. If serve returns another error,
// the caller must abort p.
func serve(p *pipe.Pipe, eager bool, pool *memoryPool) error {
	s := &server{pipe: p, eager: eager, pool: pool}
	for {
		text, err := receiveControl(p)
		if errors.Is(err, pipe.ErrPeerClosed) {
			return p.Close()
		}
		if err != nil {
			return err
		}
		c, err := parseBatchCommand(text)
		if err != nil {
			return err
		}
		if err := s.runBatch(c); err != nil {
			return err
		}
	}
}

// runBatch runs one batch in memory of the pool, and puts the memory back. After an error it does not
// put it back, because the pipe may still use it. The error is that of the allocator or of serveBatch.
func (s *server) runBatch(c batchCommand) (err error) {
	if s.memory, err = s.pool.get(); err != nil {
		return err
	}
	if err := s.memory.resize(c.messages, c.size); err != nil {
		return err
	}
	for i := range c.messages {
		s.replies = append(s.replies, s.memory.message(i, c.named))
		s.allocations = append(s.allocations, s.memory.allocation(i))
	}
	if err := s.serveBatch(c); err != nil {
		return err
	}
	s.pool.put(s.memory)
	s.memory, s.replies, s.allocations, s.reads = nil, nil, nil, nil
	return nil
}

// serveBatch serves a batch whose memory is allocated: it reports ready to the client, runs the
// batch, and sends the CPU time used, and after a timed batch the times. After a batch of kind sink it
// also waits for the client's request to compare the bytes, and sends the result. Bytes that differ are reported to the client
// and are not an error. The error is that of the pipe or of expect.
func (s *server) serveBatch(c batchCommand) error {
	before := cpuTime()
	if err := sendControl(s.pipe, ctlReady); err != nil {
		return err
	}
	serve := s.echo
	if c.kind == kindSink {
		serve = s.sink
	}
	if err := serve(c); err != nil {
		return err
	}
	if err := sendControl(s.pipe, fmt.Sprint(ctlDone, " ", (cpuTime()-before).Nanoseconds())); err != nil || c.kind == kindEcho {
		return err
	}
	if c.kind == kindTimed {
		return sendTimes(s.pipe, s.reads)
	}
	if err := expect(s.pipe, ctlCheck); err != nil {
		return err
	}
	if err := s.memory.check(c.messages, c.first); err != nil {
		return sendControl(s.pipe, fmt.Sprint(ctlError, " ", err))
	}
	return sendControl(s.pipe, ctlChecked)
}

// echo reads each message of a batch and sends it back from the memory into which it was read, without
// a wait for a GPU. It stops at the first error of the pipe and returns it.
func (s *server) echo(c batchCommand) error {
	for i := range c.messages {
		if err := s.readMessageInto(i); err != nil {
			return err
		}
		if c.kind == kindTimed {
			s.reads = append(s.reads, time.Now().UnixNano())
		}
		if err := s.pipe.Write(context.Background(), s.replies[i]); err != nil {
			return err
		}
	}
	return nil
}

// readMessageInto blocks until the next message has arrived, and reads it into the memory of slot i
// of the batch. The error is that of the pipe.
func (s *server) readMessageInto(i int) error {
	in, err := s.pipe.Next(context.Background())
	if err != nil {
		return err
	}
	return readMessage(in, s.allocations[i])
}

// readMessage reads in, a message that has arrived, into the memory of allocation. After success it
// releases in, which must not be used any more. The error is that of the pipe.
func readMessage(in *pipe.Incoming, allocation pipe.Allocation) error {
	err := in.Read(context.Background(), allocation)
	if err == nil {
		in.Release()
	}
	return err
}

// readsInTurn reports whether the server reads the messages of this batch one after the other: their
// bytes do not wait until it has supplied memory, because they are inline or eager.
func (s *server) readsInTurn(c batchCommand) bool {
	_, host := s.memory.(*arena)
	switch plan := s.pipe.Plan(); {
	case !host:
		return c.size == 0
	case plan.Dialect == pipe.DialectNative && plan.Transport == shm.Name:
		return c.size <= ringBytes
	case plan.Dialect == pipe.DialectNative:
		basicOnly := !slices.ContainsFunc(plan.Channels, func(c pipe.PlannedChannel) bool { return c.Channel != basic.Name })
		return c.size <= inlineBytes || c.named && c.size <= eagerBytes && s.eager && basicOnly
	}
	return c.size == 0 || c.named && c.size <= inlineBytes
}

// sink reads all messages of a batch, each into its slot. If the sender waits for the memory of
// each message, sink reads up to c.depth messages concurrently, as the C++ server does. At the end it
// waits once for the GPU that has the memory. The error is that of the pipe or of the GPU, or several of
// them joined.
func (s *server) sink(c batchCommand) error {
	if s.readsInTurn(c) {
		for i := range c.messages {
			if err := s.readMessageInto(i); err != nil {
				return err
			}
		}
		return nil
	}
	var (
		readers sync.WaitGroup
		mu      sync.Mutex
		begun   int
		errs    = make([]error, min(c.depth, c.messages))
	)
	next := func() (*pipe.Incoming, int, error) {
		mu.Lock()
		defer mu.Unlock()
		if begun == c.messages {
			return nil, 0, nil
		}
		in, err := s.pipe.Next(context.Background())
		begun++
		return in, begun - 1, err
	}
	for r := range errs {
		readers.Go(func() {
			for {
				in, i, err := next()
				if err == nil && in != nil {
					err = readMessage(in, s.allocations[i])
				}
				if in == nil || err != nil {
					errs[r] = err
					return
				}
			}
		})
	}
	readers.Wait()
	return errors.Join(append(errs, settleAll(s.memory, c.messages))...)
}

// pipeServer is the server of a measurement: a context, its listener, and goroutines that serve the
// pipes it accepts.
type pipeServer struct {
	context  *pipe.Context
	listener *pipe.Listener
	failed   chan error // receives the first error of a pipe
	serving  sync.WaitGroup
	memory   memoryPool
	eager    bool // of the pipes: see server

	closeKind func() error // closes the device kind of the memory
}

// listen starts a server for the pipes of s, which listens on all of its transports and serves each
// pipe on a goroutine. The caller must call close on the result. When ctx ends, the server accepts
// no further pipes. Events of the pipes go to trace if that is not nil. The error matches ErrSpec or
// ErrPath, or is that of package pipe.
func listen(ctx context.Context, s Spec, from Catalog, trace *Trace) (*pipeServer, error) {
	opts, kind, err := s.open("bench server", from)
	if err != nil {
		return nil, err
	}
	opts.Events = trace.of("server")
	l := &pipeServer{failed: make(chan error, 1), eager: !s.NoEager, closeKind: sync.OnceValue(func() error { return closeGPUs(kind) })}
	l.memory.fresh = func() (memory, error) { return newMemory(s, kind, true) }
	if l.context, err = pipe.New(opts); err != nil {
		return nil, errors.Join(err, l.closeKind())
	}
	var urls []string
	for _, e := range opts.Transports {
		urls = append(urls, anyAddress(e.Name))
	}
	if l.listener, err = l.context.Listen(ctx, urls...); err != nil {
		return nil, errors.Join(err, l.context.Close(), l.closeKind())
	}
	l.serving.Go(func() { l.accept(ctx) })
	return l, nil
}

// anyAddress returns a URL of the transport with that name at which the system chooses the port or
// name when a listener is opened, so that it is free.
func anyAddress(transport string) string {
	if transport == tcpTransport {
		return "uv://127.0.0.1:0"
	}
	return transport + "://"
}

// accept serves every pipe that is opened, each on its own goroutine, and returns when the listener
// is closed or ctx ends. It aborts a pipe that fails, and sends the first such error to s.failed.
func (s *pipeServer) accept(ctx context.Context) {
	for {
		p, err := s.listener.Accept(ctx)
		if err != nil {
			return
		}
		s.serving.Go(func() {
			if err := serve(p, s.eager, &s.memory); err != nil {
				p.Abort(err)
				select {
				case s.failed <- err:
				default:
				}
			}
		})
	}
}

// close closes the listener and all pipes, waits until the goroutines of the server have ended, closes
// the device kind, and returns the errors of closing. It may be called again.
func (s *pipeServer) close() error {
	err := s.context.Close()
	s.serving.Wait()
	return errors.Join(err, s.closeKind())
}
