package filetransfer

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// stream writes all files to the pipe, with as many chunks at a time as there are buffers. It
// returns when all writes have ended, so that no goroutine uses a buffer any more. If s.streaming
// has ended and the transfer has not, it then asks the receiver to stop, and returns the error of
// that message. Otherwise it returns the first error of a file or a write, with which it has also
// ended the transfer.
func (s *sender) stream() error {
	st := &streamer{sender: s, buffers: newBuffers(s.options.Memory)}
	for i := range s.list.items {
		if err := st.file(i); err != nil {
			st.fail(err)
			break
		}
	}
	st.leaving.Wait()
	if s.ctx.Err() != nil || s.streaming.Err() == nil {
		return st.err
	}
	m, err := encode(senderMessage{Stop: &stop{context.Cause(s.streaming).Error()}})
	if err == nil {
		err = s.pipe.Write(context.Background(), m)
	}
	return err
}

// streamer reads files and writes them to the pipe. Its methods are called by one goroutine, except for
// fail.
type streamer struct {
	*sender
	buffers *buffers
	leaving sync.WaitGroup

	once sync.Once
	err  error // the first one
}

// fail records err as the error that stream returns, or the cause of s.ctx if the transfer has
// ended before. It then ends the transfer: it cancels s.ctx and, unless the recorded error reports
// that the peer has ended the pipe, aborts the pipe. fail does nothing if an error is recorded
// already, or if s.streaming has ended and the transfer has not.
func (s *streamer) fail(err error) {
	if s.streaming.Err() != nil && s.ctx.Err() == nil {
		return // err is a consequence, and the receiver is asked to stop
	}
	s.once.Do(func() {
		if s.ctx.Err() != nil { // err is a consequence of the cancellation
			err = context.Cause(s.ctx)
		}
		s.err = err
		if pipeEnded(err) {
			s.cancel(err) // without Abort, because the last message of the receiver can still be read
		} else {
			s.abort(err)
		}
	})
}

// write writes a message without tensors, and blocks until it was written. payloads are its
// payloads. The error is that of encoding v or of the pipe.
func (s *streamer) write(v senderMessage, payloads ...pipe.Payload) error {
	m, err := encode(v)
	if err != nil {
		return err
	}
	m.Payloads = payloads
	return s.pipe.Write(context.Background(), m)
}

// file opens the index-th file of the list and sends its header and the bytes that the receiver
// does not have. When it returns, the last chunks may still be in the process of being written, but
// the file is closed. The error matches ErrChanged if the file differs from the offer, or is one of
// package os or safetensors, that of the pipe, or the cause of s.streaming.
func (s *streamer) file(index int) error {
	it := s.list.items[index]
	src, err := openSource(it.path)
	if err != nil {
		return err
	}
	defer src.file.Close()
	if int(src.info.Size()) != it.bytes || src.tensors != it.tensors {
		return withName(it.path, ErrChanged)
	}
	from, sum, err := s.compare(src)
	if err != nil {
		return withName(it.path, err)
	}
	headSum, at := sumOf(src.head), from
	if from < len(src.head) {
		from, sum, at = 0, headSum, len(src.head)
	}
	if at == it.bytes {
		if err := src.check(); err != nil {
			return withName(it.path, err)
		}
		s.written(index, sum, from)
	}
	if err := s.write(senderMessage{File: &fileHead{index, headSum, from}}, pipe.Payload{Data: src.head}); err != nil {
		return err
	}
	s.watch.Moved(at)
	for at < it.bytes {
		n := min(chunkBytes-at%chunkBytes, it.bytes-at)
		if sum, err = s.chunk(src, chunkHead{File: index, Offset: at}, n, sum, from); err != nil {
			return withName(it.path, err)
		}
		at += n
	}
	return nil
}

// compareTurn is the number of chunks after which a sender that compares its file with that of the
// receiver sends a message, so that the receiver does not take it for stalled.
const compareTurn = 16

// compare waits until the receiver has reported its bytes of src, the next file, and compares them
// with src chunk by chunk. It returns the number of the first bytes that are equal, which is a
// multiple of chunkBytes or the size of the file, and their CRC32C. While it compares, it sends
// messages, so that the receiver does not take this end for stalled. It returns 0, 0 without
// Resume. The error is that of src.read or of the pipe, or the cause of s.streaming.
func (s *streamer) compare(src *source) (from int, sum uint32, err error) {
	if !s.options.Resume {
		return 0, 0, nil
	}
	var found *fileFound
	select {
	case found = <-s.found:
	case <-s.streaming.Done():
		return 0, 0, context.Cause(s.streaming)
	}
	if found.Bytes == 0 {
		return 0, 0, nil
	}
	buf, err := s.buffers.acquire(s.streaming)
	if err != nil {
		return 0, 0, err
	}
	defer s.buffers.release(buf)
	for k := 0; from < found.Bytes; k++ {
		if s.streaming.Err() != nil {
			return 0, 0, context.Cause(s.streaming)
		}
		data := buf[:min(chunkBytes, found.Bytes-from)]
		crc, err := src.read(data, from)
		if err != nil {
			return 0, 0, err
		}
		if crc != binary.LittleEndian.Uint32(found.Sums[4*k:]) {
			break
		}
		from, sum = from+len(data), combineSums(sum, crc, len(data))
		if k%compareTurn == compareTurn-1 {
			if err := s.write(senderMessage{Comparing: true}); err != nil {
				return 0, 0, err
			}
		}
	}
	return from, sum, nil
}

// chunk waits for a buffer, reads n bytes of src at h.Offset, and starts to write them to the pipe.
// sum is the CRC32C of the bytes before them; chunk returns the CRC32C that includes them. A
// goroutine releases the buffer when the write has ended, and calls fail if the write has failed.
// With the last chunk of the file, chunk first checks that the file has not changed, and passes the
// checksum and from to written. The error matches ErrChanged, wraps one of package os, or is the
// cause of s.streaming.
func (s *streamer) chunk(src *source, h chunkHead, n int, sum uint32, from int) (uint32, error) {
	buf, err := s.buffers.acquire(s.streaming)
	if err != nil {
		return 0, err
	}
	m, err := s.load(src, &h, buf[:n])
	if err != nil {
		s.buffers.release(buf)
		return 0, fmt.Errorf("at byte %d: %w", h.Offset, err)
	}
	sum = combineSums(sum, h.CRC, n)
	if h.Offset+n == int(src.info.Size()) {
		s.written(h.File, sum, from) // before the receiver can complete the file
	}
	op := s.pipe.WriteAsync(context.Background(), m)
	s.leaving.Go(func() {
		<-op.Done() // at the latest when the pipe ends
		s.buffers.release(buf)
		if err := op.Err(); err != nil {
			s.fail(err)
			return
		}
		s.watch.Moved(n)
	})
	return sum, nil
}

// load fills data with the bytes of src at h.Offset, sets h.CRC, and returns a message of them,
// which uses data. After the last bytes of the file it checks that the file has not changed. The
// error is ErrChanged or one of package os.
func (s *streamer) load(src *source, h *chunkHead, data []byte) (_ *pipe.Message, err error) {
	if h.CRC, err = src.read(data, h.Offset); err != nil {
		return nil, err
	}
	if h.Offset+len(data) == int(src.info.Size()) {
		if err := src.check(); err != nil {
			return nil, err
		}
	}
	m, err := encodeChunk(*h, data)
	if err != nil {
		return nil, err
	}
	m.Tensors[0].Compression = s.options.Compression
	return m, nil
}
