package filetransfer

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// receiveMessage handles one message of the sender after the offer: the start of a file, or a tensor.
// The error is that of receiveHead or receiveTensor, or matches ErrProtocol for any other message.
func (r *receiver) receiveMessage(in *pipe.Incoming) error {
	var o senderMessage
	if err := decode(in.Descriptor(), &o); err != nil {
		return err
	}
	switch {
	case o.File != nil && o.Tensor == nil:
		return r.receiveHead(in, o.File)
	case o.Tensor != nil && o.File == nil:
		return r.receiveTensor(in, o.Tensor)
	}
	return protocolErrorf("a message that is neither a file nor a tensor")
}

// currentComplete reports whether all tensors of the file that was started last have been received. It
// returns true before the first file.
func (r *receiver) currentComplete() bool {
	return r.current == nil || r.tensorsReceived == len(r.current.parts)
}

// receiveHead handles the message that starts a file. It waits for space in the window, reads and
// checks the header, and creates the part file. Another goroutine then writes the header to it. The
// error matches ErrProtocol if the file is not the next one of the offer, or is that of begin, or the
// cause of r.ctx.
func (r *receiver) receiveHead(in *pipe.Incoming, o *fileHead) error {
	if err := expectParts(in.Descriptor(), 1, 0); err != nil {
		return err
	}
	size := in.Descriptor().Payloads[0].Length
	if r.filesStarted == len(r.files) || o.File != r.filesStarted || !r.currentComplete() || size > r.files[o.File].Bytes {
		return protocolErrorf("file %d starts with %d bytes, out of order or larger than offered", o.File, size)
	}
	if err := r.window.enter(r.ctx, size); err != nil {
		return err
	}
	p, head, err := r.begin(in, o)
	if err != nil {
		r.window.leave(size)
		return withName(r.files[o.File].Name, err)
	}
	r.filesStarted, r.current, r.tensorsReceived = r.filesStarted+1, p, 0
	r.writeLater(p, size, func() error { return r.write(p, head, 0) })
	return nil
}

// begin reads the bytes before the tensors of a file from the message in and checks them. It creates
// the part file and adds it to r.open. It returns the part file and those bytes. The error matches
// ErrChecksum, ErrProtocol, ErrLimit or ErrBusy, or is one of package safetensors or os, or that of the
// pipe.
func (r *receiver) begin(in *pipe.Incoming, o *fileHead) (*partFile, []byte, error) {
	f := r.files[o.File]
	head := make([]byte, in.Descriptor().Payloads[0].Length) // bounded by the limits of the pipe
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
		return nil, nil, protocolErrorf("%d bytes after the header", rest.Len())
	}
	if err := r.store.checkTensor(f.Name, largest(parts)); err != nil {
		return nil, nil, err
	}
	p, err := r.store.newPartFile(f, head, parts)
	if err != nil {
		return nil, nil, err
	}
	p.index = o.File
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[p] = true
	return p, head, nil
}

// receiveTensor handles a message with a tensor. It waits for space in the window and allocates memory
// for the tensor. Another goroutine then reads the tensor and writes it to the file. The error matches
// ErrProtocol if the tensor is not the next one of the current file. Otherwise it is that of the
// allocation, or the cause of r.ctx.
func (r *receiver) receiveTensor(in *pipe.Incoming, o *tensorHead) error {
	if err := expectParts(in.Descriptor(), 0, 1); err != nil {
		return err
	}
	p := r.current
	if r.currentComplete() || o.File != p.index || o.Index != r.tensorsReceived {
		return protocolErrorf("tensor %d of file %d out of order", o.Index, o.File)
	}
	size := p.parts[o.Index].bytes
	if n := in.Descriptor().Tensors[0].Length; n != size {
		return withName(p.Name, protocolErrorf("tensor %d with %d bytes; the header describes %d", o.Index, n, size))
	}
	if err := r.window.enter(r.ctx, size); err != nil {
		return err
	}
	memory, err := r.store.pool.Alloc(size)
	if err != nil {
		r.window.leave(size)
		return err
	}
	r.tensorsReceived++
	r.writeLater(p, size, func() error {
		defer memory.Release()
		return r.tensor(in, p, o, memory)
	})
	return nil
}

// writeLater runs do, which writes a part of the file p, on another goroutine. It ends the transfer if
// do fails. The caller has entered the window with that number of bytes; they leave it when do returns.
func (r *receiver) writeLater(p *partFile, bytes int, do func() error) {
	r.working.Go(func() {
		err := do()
		r.window.leave(bytes)
		if err != nil {
			r.end(withName(p.Name, err))
		}
	})
}

// tensor reads the tensor of the message in into memory, compares it with its checksum, and writes it
// to the file p. The caller releases memory afterwards. The error matches ErrChecksum, or is that of
// the pipe or of write.
func (r *receiver) tensor(in *pipe.Incoming, p *partFile, o *tensorHead, memory *tensor.Storage) error {
	data, err := memory.Bytes()
	if err != nil {
		return err
	}
	if err := in.Read(context.Background(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(data)}}); err != nil {
		return err
	}
	r.clock.pause()
	crc := sumOf(data)
	r.clock.resume()
	if crc != o.CRC {
		return fmt.Errorf("tensor %d: %w: %08x, sent was %08x", o.Index, ErrChecksum, crc, o.CRC)
	}
	p.sum.set(o.Index, crc, len(data))
	return r.write(p, data, p.parts[o.Index].begin)
}

// write writes data, one part of the file p, at offset. After the last part it gives the file its final
// name and confirms it to the sender, and after the last file it ends the transfer. The error is one of
// package os, ErrExists, or that of the pipe.
func (r *receiver) write(p *partFile, data []byte, offset int) error {
	placed, err := r.toDisk(p, data, offset)
	if err != nil || placed == nil {
		return err
	}
	m, err := encode(receiverMessage{Placed: &filePlaced{p.index, placed.CRC32C}})
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.open, p)
	r.placed++ // before the confirmation, after which the sender may close
	r.mu.Unlock()
	if err := r.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	r.clock.reset()
	if int(r.reported.Add(1)) == len(r.files) {
		r.end(nil)
	}
	return nil
}

// toDisk writes data, one part of the file p, at offset. After the last part it gives the file its
// final name and returns a description of it. After any earlier part it returns nil, nil. The time that
// toDisk takes does not count as a wait for the sender. Different parts may be written concurrently,
// each once.
func (r *receiver) toDisk(p *partFile, data []byte, offset int) (placed *File, err error) {
	r.clock.pause()
	defer r.clock.resume()
	if _, err := p.file.WriteAt(data, int64(offset)); err != nil {
		return nil, err
	}
	r.watch.Moved(len(data))
	if p.left.Add(-1) > 0 {
		return nil, nil
	}
	if err := p.place(); err != nil {
		return nil, err
	}
	f := File{p.Name, p.Bytes, len(p.parts), p.sum.total()}
	r.watch.Placed(f)
	return &f, nil
}

// complete reports whether all files of the offer have their final names. It returns false before the
// offer.
func (r *receiver) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.files != nil && r.placed == len(r.files)
}
