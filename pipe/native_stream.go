package pipe

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// readBuffer is the size of the buffer of the message stream. A small message takes one read.
const readBuffer = 8 << 10

// errNoData is returned by a pollReader whose stream has no data now.
var errNoData = errors.New("no data")

// streamReader reads messages from the message stream. If the stream can be polled it never blocks:
// it keeps a partially received message and continues with it at the next call, on any goroutine
// that holds mu.
//
// A message is returned early, before its inline bytes have been read, so that Read can receive
// these straight into its memory. Such a message is open until its inline bytes have been read.
type streamReader struct {
	pipe   *nativePipe
	poller transport.Poller // nil if the stream cannot be polled; then src blocks

	mu           sync.Mutex
	src          *bufio.Reader
	err          error           // the error of every further read
	in           *nativeIncoming // partially received: its header has been read
	header       native.Header
	open         *nativeIncoming // returned early, with inline bytes still in the stream; nil if none
	opened       uint64          // number of messages returned early
	openedAtPark uint64          // value of opened when the run loop last read
	skip         int             // bytes of a discarded message that follow in the stream
	batched      bool            // in was received together with other messages

	arrivedInBatch atomic.Bool   // the last message was received together with others
	arrivals       atomic.Uint64 // number of messages received

	parked  atomic.Bool   // the run loop leaves the open message to Read
	overdue bool          // it left a message too long, and has not read all data since; only the run loop uses it
	resume  chan struct{} // has a token when a parked loop is to check for work
}

func (r *streamReader) init(p *nativePipe, s transport.Stream) {
	r.pipe = p
	r.resume = make(chan struct{}, 1)
	var src io.Reader = s
	if poll, ok := s.(transport.Poller); ok {
		r.poller, src = poll, pollReader{poll}
	}
	r.src = bufio.NewReaderSize(src, readBuffer)
}

// pollReader is an io.Reader that returns errNoData if the stream has no data.
type pollReader struct{ poller transport.Poller }

func (r pollReader) Read(p []byte) (int, error) {
	n, err := r.poller.TryRead(p)
	if n == 0 && err == nil {
		err = errNoData
	}
	return n, err
}

// read returns the next message. If early is true, it may return a message whose inline bytes are
// still in the stream; the descriptor of that message is decoded, and its body is nil. Any other
// message has a body and is not decoded yet. If the stream can be polled and no message is
// complete, read returns errNoData. It keeps any other error in r.err and returns it from all later
// calls. If the error is not nil, the message must not be used. The caller holds mu.
func (r *streamReader) read(early bool) (*nativeIncoming, error) {
	if r.err != nil {
		return nil, r.err
	}
	in, err := r.readMessage(early)
	if err != nil && err != errNoData {
		r.err = err
	}
	return in, err
}

// readMessage returns the next message. If early is true, it may return a message whose inline
// bytes are still in the stream. The error is errNoData if the message is not complete, that of the
// stream, or one of decode or nativeError if the message is invalid. Unlike read it neither checks
// nor sets r.err. The caller holds mu.
func (r *streamReader) readMessage(early bool) (*nativeIncoming, error) {
	if err := r.readInline(); err != nil {
		return nil, midMessage(err)
	}
	if r.in == nil {
		r.batched = r.src.Buffered() > 0
		p, err := r.src.Peek(native.HeaderSize)
		if err != nil && len(p) > 0 {
			err = midMessage(err)
		}
		if err != nil {
			return nil, err
		}
		h, err := native.DecodeMessageHeader(p, r.pipe.context.limits.native())
		if err != nil {
			return nil, nativeError(err)
		}
		_, _ = r.src.Discard(native.HeaderSize)
		r.in, r.header = r.pipe.context.incoming.Get().(*nativeIncoming), h
		r.in.reader, r.in.Incoming.pipe, r.in.of, r.in.memory = &r.pipe.in, r.pipe.Pipe, r.in, r.pipe.newCharge()
	}
	in := r.in
	if early && len(in.frame) == 0 && r.readDescriptor() {
		r.in, r.open = nil, in
		r.opened++
		r.arrivedInBatch.Store(false)
		r.arrivals.Add(1)
		return in, in.decodeDescriptor(r.header.Length)
	}
	var err error
	if in.frame, err = readGrowing(r.src, in.frame, r.header.Remaining(), &in.memory, 0); err != nil {
		return nil, midMessage(err)
	}
	r.in = nil
	r.arrivedInBatch.Store(r.batched || r.src.Buffered() > 0)
	r.arrivals.Add(1)
	in.body, err = r.header.Body(in.frame)
	return in, nativeError(err)
}

// readDescriptor reads the body of r.in up to its inline bytes into r.in.frame, and reports true.
// It reads nothing and reports false if the message must be read as a whole: it is small, it has a
// checksum, a part is compressed or not inline, or r.src has not buffered the whole descriptor. The
// caller holds mu.
func (r *streamReader) readDescriptor() bool {
	if r.header.CRC || r.header.Length <= readBuffer {
		return false
	}
	p, _ := r.src.Peek(r.src.Buffered())
	n := native.DescriptorSize(p)
	if n == 0 {
		return false
	}
	r.in.frame = append(r.in.frame, p[:n]...)
	_, _ = r.src.Discard(n)
	return true
}

// readInline reads the bytes that precede the next message header, and returns nil once it has.
// They are the inline bytes of the open message, which is then no longer open and whose waiting
// Read it wakes, and the bytes of a discarded message, which it throws away. After an error, also
// errNoData, the next call continues where this one stopped. The caller holds mu.
func (r *streamReader) readInline() error {
	if r.open != nil {
		if err := r.open.readInlineBytes(r.src); err != nil {
			return err
		}
		if r.open.inlineBuf != nil {
			r.open.parts.SetData(r.open.inlineBuf)
		}
		if r.open.inlineDone != nil {
			close(r.open.inlineDone)
		}
		r.open = nil
	}
	for r.skip > 0 {
		n, err := r.src.Discard(r.skip)
		if r.skip -= n; err != nil {
			return err
		}
	}
	return nil
}

// skipInline makes the reader skip the inline bytes of in that are still in the stream, if in is
// the open message, and reports true. From then on the reader does not use the memory to which it
// was reading those bytes. If in is not the open message, skipInline does nothing and reports
// false. It locks mu.
func (r *streamReader) skipInline(in *nativeIncoming) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open != in {
		return false
	}
	r.open, r.skip = nil, in.inlineLeft
	in.inlineDst = nil
	r.resumeLoop()
	return true
}

// readGrowing reads from src into buf until buf has n bytes, and returns the extended slice, which
// has buf's memory or new memory. After an error it returns the slice with the bytes read so far.
// It grows the memory stepwise, by frameStep or to double its size, so that a peer cannot make it
// allocate much by announcing a large n. Before it allocates, it raises held to the capacity plus
// beside bytes; a nil held counts nothing. The error is that of src, or matches ErrLimit if the
// peer is evicted.
func readGrowing(src io.Reader, buf []byte, n int, held *charge, beside int) ([]byte, error) {
	for len(buf) < n {
		step := min(n-len(buf), max(frameStep, len(buf), cap(buf)-len(buf)))
		start := len(buf)
		if err := held.grow(beside + max(start+step, cap(buf))); err != nil {
			return buf, err
		}
		if cap(buf) < start+step {
			buf = append(make([]byte, 0, start+step), buf...)
		}
		k, err := io.ReadFull(src, buf[start:start+step])
		buf = buf[:start+k]
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}
