package ferry

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// take takes the next part of the files.
func (r *reception) take(in *pipe.Incoming) error {
	var o order
	if err := hear(in.Descriptor(), &o); err != nil {
		return err
	}
	switch {
	case o.File != nil && o.Tensor == nil:
		return r.takeHead(in, o.File)
	case o.Tensor != nil && o.File == nil:
		return r.takeTensor(in, o.Tensor)
	}
	return brokenf("a message that neither begins a file nor goes on with one")
}

// whole reports whether all tensors of the current file have been taken.
func (r *reception) whole() bool { return r.current == nil || r.taken == len(r.current.parts) }

// takeHead begins the next file.
func (r *reception) takeHead(in *pipe.Incoming, o *fileOrder) error {
	if err := expectParts(in.Descriptor(), 1, 0); err != nil {
		return err
	}
	size := in.Descriptor().Payloads[0].Length
	if r.begun == len(r.files) || o.File != r.begun || !r.whole() || size > r.files[o.File].Bytes {
		return brokenf("file %d begins with %d bytes, out of turn or larger than offered", o.File, size)
	}
	if err := r.window.enter(r.ctx, size); err != nil {
		return err
	}
	l, head, err := r.begin(in, o)
	if err != nil {
		r.window.leave(size)
		return about(r.files[o.File].Name, err)
	}
	r.begun, r.current, r.taken = r.begun+1, l, 0
	r.work(l, size, func() error { return r.write(l, head, 0) })
	return nil
}

// begin reads the head of a file, checks it, and makes the file.
func (r *reception) begin(in *pipe.Incoming, o *fileOrder) (*landing, []byte, error) {
	f := r.files[o.File]
	head := make([]byte, in.Descriptor().Payloads[0].Length) // as the limits of the pipe allow
	if err := in.Read(context.Background(), pipe.Allocation{Payloads: [][]byte{head}}); err != nil {
		return nil, nil, err
	}
	r.clock.pause()
	defer r.clock.resume()
	if crc := sumOf(head); crc != o.CRC {
		return nil, nil, fmt.Errorf("header: %w: %08x, sent was %08x", ErrChecksum, crc, o.CRC)
	}
	rest := bytes.NewReader(head)
	parts, err := readHead(rest, f.Bytes)
	if err != nil {
		return nil, nil, err
	}
	if rest.Len() > 0 {
		return nil, nil, brokenf("%d bytes more than the header has", rest.Len())
	}
	if err := r.store.checkTensor(f.Name, largest(parts)); err != nil {
		return nil, nil, err
	}
	l, err := r.store.land(f, head, parts)
	if err != nil {
		return nil, nil, err
	}
	l.index = o.File
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[l] = true
	return l, head, nil
}

// takeTensor takes the next tensor of the current file.
func (r *reception) takeTensor(in *pipe.Incoming, o *tensorOrder) error {
	if err := expectParts(in.Descriptor(), 0, 1); err != nil {
		return err
	}
	l := r.current
	if r.whole() || o.File != l.index || o.Index != r.taken {
		return brokenf("tensor %d of file %d out of turn", o.Index, o.File)
	}
	size := l.parts[o.Index].bytes
	if n := in.Descriptor().Tensors[0].Length; n != size {
		return about(l.Name, brokenf("tensor %d with %d bytes; the header says %d", o.Index, n, size))
	}
	if err := r.window.enter(r.ctx, size); err != nil {
		return err
	}
	memory, err := r.store.pool.Alloc(size)
	if err != nil {
		r.window.leave(size)
		return err
	}
	r.taken++
	r.work(l, size, func() error {
		defer memory.Release()
		return r.tensor(in, l, o, memory)
	})
	return nil
}
