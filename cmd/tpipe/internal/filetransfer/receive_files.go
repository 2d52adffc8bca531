package filetransfer

import (
	"bytes"
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// receiveMessage handles a message of the sender after the offer: it calls receiveHead for the
// start of a file, receiveChunk for a chunk, and stop for the sender's last message, and returns
// their error. It discards messages that only show that the sender still compares. For any other
// message the error matches ErrProtocol.
func (r *receiver) receiveMessage(in *pipe.Incoming) error {
	var o senderMessage
	if err := decode(in.Descriptor(), &o); err != nil {
		return err
	}
	parts := len(in.Descriptor().Payloads) + len(in.Descriptor().Tensors)
	switch {
	case o.File != nil && o.Chunk == nil:
		return r.receiveHead(in, o.File)
	case o.Chunk != nil && o.File == nil:
		return r.receiveChunk(in, o.Chunk)
	case o.Stop != nil && parts == 0:
		return r.stop(o.Stop)
	case o.Comparing && r.resume && parts == 0:
		return in.Discard(context.Background())
	}
	return protocolErrorf("a message that is neither a file nor a chunk")
}

// currentReceived reports whether the messages of all chunks of the current file, the one that was
// started last, have arrived. It returns true if no file was started yet.
func (r *receiver) currentReceived() bool {
	return r.current == nil || r.current.received == r.current.Bytes
}

// receiveHead handles in, the message that starts the file that o names. It reads and checks the
// file's header, and creates or opens the part file. If no chunk follows, it passes the file to
// flushFiles. The error matches ErrProtocol if the message cannot be the start of the next file of
// the offer, and otherwise wraps that of r.begin.
func (r *receiver) receiveHead(in *pipe.Incoming, o *fileHead) error {
	if err := expectParts(in.Descriptor(), 1, 0); err != nil {
		return err
	}
	size := in.Descriptor().Payloads[0].Length
	if r.filesStarted == len(r.files) || o.File != r.filesStarted || !r.currentReceived() || size > r.files[o.File].Bytes {
		return protocolErrorf("file %d starts with %d bytes, out of order or larger than offered", o.File, size)
	}
	p, err := r.begin(in, o)
	if err != nil {
		return withName(r.files[o.File].Name, err)
	}
	p.index = o.File
	r.mu.Lock()
	r.open[p] = true
	r.mu.Unlock()
	r.filesStarted, r.current = r.filesStarted+1, p
	if r.currentReceived() {
		r.written <- writtenBytes{p, p.Bytes}
	}
	return nil
}

// begin reads the header of a file, that is all bytes before its tensors, from the payload of in,
// and checks it. It returns a new part file, or the one to resume, and reports the bytes that the
// file has to the watcher. The error matches ErrChecksum or ErrProtocol, or is one of package
// safetensors, that of newPartFile or resumePart, or that of the pipe.
func (r *receiver) begin(in *pipe.Incoming, o *fileHead) (*partFile, error) {
	f := r.files[o.File]
	head := make([]byte, in.Descriptor().Payloads[0].Length) // bounded by the limits of the pipe
	if err := in.Read(context.Background(), pipe.Allocation{Payloads: [][]byte{head}}); err != nil {
		return nil, err
	}
	r.clock.pause()
	defer r.clock.resume()
	if crc := sumOf(head); crc != o.CRC {
		return nil, fmt.Errorf("header: %w: %08x, sent was %08x", ErrChecksum, crc, o.CRC)
	}
	rest := bytes.NewReader(head)
	tensors, err := readHead(rest, f.Bytes)
	if err != nil {
		return nil, err
	}
	if rest.Len() > 0 {
		return nil, protocolErrorf("%d bytes after the header", rest.Len())
	}
	var p *partFile
	if o.From == 0 {
		p, err = r.store.newPartFile(f, head)
	} else if had := r.foundOf(o.File); had == nil || o.From < len(head) || o.From > had.Bytes ||
		o.From%chunkBytes != 0 && o.From != f.Bytes || had.final && o.From < f.Bytes {
		return nil, protocolErrorf("a start at byte %d", o.From)
	} else {
		p, err = r.store.resumePart(f, had, o.From, head)
	}
	if err != nil {
		return nil, err
	}
	p.tensors = tensors
	r.watch.Moved(p.received)
	return p, nil
}

// chunk is a chunk that is being received.
type chunk struct {
	file *partFile
	data []byte // of buf
	buf  []byte
	crc  uint32
	done chan struct{} // closed when data has been received, or err is set
	err  error
}

// receiveChunk handles in, the message with the chunk that o names. It waits for a buffer. A
// goroutine then reads the chunk, and writeChunks writes it to the part file. The error matches
// ErrProtocol if the message is not that of the next chunk of the current file. Otherwise it is the
// cause of r.ctx.
func (r *receiver) receiveChunk(in *pipe.Incoming, o *chunkHead) error {
	if err := expectParts(in.Descriptor(), 0, 1); err != nil {
		return err
	}
	p := r.current
	if r.currentReceived() || o.File != p.index || o.Offset != p.received {
		return protocolErrorf("a chunk of file %d at byte %d, out of order", o.File, o.Offset)
	}
	size := min(chunkBytes-o.Offset%chunkBytes, p.Bytes-o.Offset)
	if n := in.Descriptor().Tensors[0].Length; n != size {
		return withName(p.Name, protocolErrorf("a chunk of %d bytes at byte %d; want %d", n, o.Offset, size))
	}
	buf, err := r.buffers.acquire(r.ctx)
	if err != nil {
		return err
	}
	p.received += size
	c := &chunk{file: p, data: buf[:size], buf: buf, crc: o.CRC, done: make(chan struct{})}
	r.chunks <- c // it has space for all buffers
	r.writing.Go(func() {
		defer close(c.done)
		c.err = in.Read(context.Background(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(c.data)}})
	})
	return nil
}

// writeChunks writes the chunks to their part files, in the order in which the sender has sent
// them, and passes the numbers of bytes to flushFiles, until r.chunks is closed. After an error it
// ends the transfer and writes no more chunks, but still releases their buffers.
func (r *receiver) writeChunks() {
	defer close(r.written)
	failed := false
	for c := range r.chunks {
		<-c.done // at the latest when the pipe ends
		if c.err == nil && !failed {
			r.clock.pause()
			if c.err = c.file.write(c.data, c.crc); c.err == nil {
				r.watch.Moved(len(c.data))
			}
			r.clock.resume()
		}
		r.buffers.release(c.buf)
		switch {
		case failed:
		case c.err != nil:
			failed = true
			r.end(withName(c.file.Name, c.err))
		default:
			r.written <- writtenBytes{c.file, c.file.written}
		}
	}
}

// allPlaced reports whether all files of the offer have their final names. It returns false while
// the offer is not accepted.
func (r *receiver) allPlaced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.files != nil && r.placed == len(r.files)
}
