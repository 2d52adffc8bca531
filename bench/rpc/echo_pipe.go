package rpc

import (
	"context"
	"errors"
	"sync"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// echoPipe accepts pipes and replies to each message with an empty one, to show what a call costs
// without the agent.
type echoPipe struct {
	context  *pipe.Context
	listener *pipe.Listener
	pool     *tensor.Pool
	work     sync.WaitGroup
}

// newEchoPipe starts an echoPipe that listens at the URL listen, and serves each pipe on a
// goroutine. If listen is "", it listens on TCP and on shared memory at addresses that the system
// chooses. ctx bounds the call only. The caller must call close. The error is that of package pipe.
func newEchoPipe(ctx context.Context, listen string) (*echoPipe, error) {
	c, err := tensorpipe.NewContext(pipe.Options{Name: "bare"})
	if err != nil {
		return nil, err
	}
	urls := []string{"uv://127.0.0.1:0", "shm://"}
	if listen != "" {
		urls = []string{listen}
	}
	l, err := c.Listen(ctx, urls...)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	e := &echoPipe{context: c, listener: l, pool: tensor.NewPool(tensor.PoolOptions{})}
	e.work.Go(func() {
		for {
			p, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			e.work.Go(func() { e.answer(p) })
		}
	})
	return e, nil
}

// close closes the listener and all pipes, waits until the goroutines of e have ended, and returns
// the error of closing the context.
func (e *echoPipe) close() error {
	err := e.context.Close()
	e.work.Wait()
	return err
}

// answer replies to each message of p with an empty one, until the pipe ends. It reads each message
// into pooled memory and drops the bytes. If a message cannot be read it aborts p.
func (e *echoPipe) answer(p *pipe.Pipe) {
	ctx := context.Background()
	for {
		in, err := p.Next(ctx)
		if err != nil {
			return
		}
		if err := e.readMessage(ctx, in); err != nil {
			p.Abort(err)
			return
		}
		if err := p.Write(ctx, &pipe.Message{Metadata: []byte{1}}); err != nil {
			return
		}
	}
}

// readMessage reads in, a message that has arrived, into memory of e.pool, and then returns the
// memory to the pool: the bytes are dropped. The error is that of the pool or of the pipe.
func (e *echoPipe) readMessage(ctx context.Context, in *pipe.Incoming) error {
	var storages []*tensor.Storage
	var memory pipe.Allocation
	for _, t := range in.Descriptor().Tensors {
		s, err := e.pool.Alloc(t.Length)
		if err != nil {
			return err
		}
		buf, err := s.Buffer()
		if err != nil {
			return err
		}
		storages, memory.Tensors = append(storages, s), append(memory.Tensors, buf)
	}
	err := in.Read(ctx, memory)
	for _, s := range storages {
		s.Release()
	}
	return err
}

// pipeRoundTrip sends the tensor x, which must be contiguous, over p to an echoPipe and blocks
// until the reply has arrived. The memory of x must not change until it returns. The error is that
// of x or of the pipe.
func pipeRoundTrip(ctx context.Context, p *pipe.Pipe, x *tensor.Tensor) error {
	buf, err := x.Buffer()
	if err != nil {
		return err
	}
	m := &pipe.Message{Metadata: []byte{1}, Tensors: []pipe.Tensor{{Buffer: buf, TargetDevice: device.CPU()}}}
	if err := p.Write(ctx, m); err != nil {
		return err
	}
	in, err := p.Next(ctx)
	if err != nil {
		return err
	}
	if err := in.Read(ctx, pipe.Allocation{}); err != nil {
		return err
	}
	in.Release()
	return nil
}
