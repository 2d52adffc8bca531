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

// barePipe is the end of pipes that answers each message with an empty one.
type barePipe struct {
	context  *pipe.Context
	listener *pipe.Listener
	pool     *tensor.Pool
	work     sync.WaitGroup
}

func newBarePipe(ctx context.Context, listen string) (*barePipe, error) {
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
	b := &barePipe{context: c, listener: l, pool: tensor.NewPool(tensor.PoolOptions{})}
	b.work.Go(func() {
		for {
			p, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			b.work.Go(func() { b.answer(p) })
		}
	})
	return b, nil
}

func (b *barePipe) url() string { return b.listener.URLs()[0] }

func (b *barePipe) close() error {
	err := b.context.Close()
	b.work.Wait()
	return err
}

// answer serves one pipe until it ends, from memory that it uses again.
func (b *barePipe) answer(p *pipe.Pipe) {
	ctx := context.Background()
	for {
		in, err := p.Next(ctx)
		if err != nil {
			return
		}
		if err := b.take(ctx, in); err != nil {
			p.Abort(err)
			return
		}
		if err := p.Write(ctx, &pipe.Message{Metadata: []byte{1}}); err != nil {
			return
		}
	}
}

func (b *barePipe) take(ctx context.Context, in *pipe.Incoming) error {
	var storages []*tensor.Storage
	var memory pipe.Allocation
	for _, t := range in.Descriptor().Tensors {
		s, err := b.pool.Alloc(t.Length)
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

// barely sends a tensor over a bare pipe and waits for the answer.
func barely(ctx context.Context, p *pipe.Pipe, x *tensor.Tensor) error {
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
