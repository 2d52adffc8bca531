package ferry

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// stream writes all files to the pipe, so many tensors at a time as the window
// has room for. When it returns nobody uses the memory any more. Unless the pipe
// is down anyway, an error takes it down: nothing more will be placed.
func (s *shipment) stream() error {
	l := &loader{shipment: s, window: newWindow(), pool: newPool()}
	for i := range s.cargo.items {
		if err := l.file(i); err != nil {
			l.stop(err)
			break
		}
	}
	l.leaving.Wait()
	return l.err
}

// loader reads files and writes them to the pipe.
type loader struct {
	*shipment
	window  *window
	pool    *tensor.Pool
	leaving sync.WaitGroup

	once sync.Once
	err  error // the first one
}

// stop ends it all with the first error.
func (l *loader) stop(err error) {
	l.once.Do(func() {
		if l.ctx.Err() != nil { // then that is why
			err = context.Cause(l.ctx)
		}
		l.err = err
		if broken(err) {
			l.cancel(err) // what the receiver said last can still be read
		} else {
			l.giveUp(err)
		}
	})
}

// file sends one file.
func (l *loader) file(index int) error {
	it := l.cargo.items[index]
	src, err := openSource(it.path)
	if err != nil {
		return err
	}
	defer src.close()
	if int(src.info.Size()) != it.bytes || len(src.parts) != it.tensors {
		return about(it.path, ErrChanged)
	}
	sum := newFileSum(src.head, len(src.parts))
	if len(src.parts) == 0 {
		l.written(index, &sum)
	}
	if err := l.head(index, src); err != nil {
		return err
	}
	for i := range src.parts {
		if err := l.tensor(index, i, src, &sum); err != nil {
			return about(it.path, err)
		}
	}
	return nil
}

// head sends the beginning of a file.
func (l *loader) head(index int, src *source) error {
	m, err := say(order{File: &fileOrder{index, sumOf(src.head)}})
	if err != nil {
		return err
	}
	m.Payloads = []pipe.Payload{{Data: src.head}}
	if err := l.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	l.watch.Moved(len(src.head))
	return nil
}

// tensor reads a tensor and starts it on its way.
func (l *loader) tensor(file, index int, src *source, sum *fileSum) error {
	at := src.parts[index]
	if err := l.window.enter(l.ctx, at.bytes); err != nil {
		return err
	}
	memory, err := l.pool.Alloc(at.bytes)
	if err != nil {
		l.window.leave(at.bytes)
		return err
	}
	op, err := l.load(file, index, src, sum, memory)
	if err != nil {
		memory.Release()
		l.window.leave(at.bytes)
		return err
	}
	l.leaving.Go(func() { l.finish(op, memory, at.bytes) })
	return nil
}

// load reads a tensor into memory and writes it to the pipe. That uses the
// memory until the operation is done.
func (l *loader) load(file, index int, src *source, sum *fileSum, memory *tensor.Storage) (*pipe.WriteOp, error) {
	data, err := memory.Bytes()
	if err != nil {
		return nil, err
	}
	if err := src.read(data, src.parts[index].begin); err != nil {
		return nil, fmt.Errorf("tensor %d: %w", index, err)
	}
	crc := sumOf(data)
	sum.set(index, crc, len(data))
	if index == len(src.parts)-1 {
		if err := src.check(); err != nil { // before the receiver can place it
			return nil, err
		}
		l.written(file, sum)
	}
	buf, err := memory.Buffer()
	if err != nil {
		return nil, err
	}
	m, err := sayTensor(tensorOrder{file, index, crc}, buf)
	if err != nil {
		return nil, err
	}
	m.Tensors[0].Compression = l.cargo.Compression
	return l.pipe.WriteAsync(context.Background(), m), nil
}

// finish waits for a tensor to leave and gives its memory back.
func (l *loader) finish(op *pipe.WriteOp, memory *tensor.Storage, bytes int) {
	<-op.Done() // at the latest when the pipe ends
	memory.Release()
	l.window.leave(bytes)
	if err := op.Err(); err != nil {
		l.stop(err)
		return
	}
	l.watch.Moved(bytes)
}
