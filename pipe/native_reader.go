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

// readBuffer is the memory through which messages are read: the header and the
// body of a small one come together.
const readBuffer = 8 << 10

// errNothing says that nothing more has come so far.
var errNothing = errors.New("nothing there")

// messageReader takes messages off the message stream. From one that can be
// polled it takes what is there, and goes on with the rest later: then any
// goroutine may be the one that reads.
type messageReader struct {
	pipe *nativePipe
	poll transport.Poller // nil where the stream waits by itself

	mu     sync.Mutex
	src    *bufio.Reader
	err    error           // why there is no more to read
	in     *nativeIncoming // under way: its header has come
	header native.Header
	open   *nativeIncoming // returned early: its inline bytes are under way
	opened uint64          // messages returned early so far
	behind uint64          // of them, when the pipe's own goroutine parked
	skip   int             // bytes of a message that nobody wants
	among  bool            // the one under way came together with others

	crowded atomic.Bool // several came together, the last time
	came    atomic.Bool // one has come since somebody asked

	parked  atomic.Bool   // the pipe's own goroutine waits in park
	overdue bool          // it has waited for too long, and not caught up since; its own
	resume  chan struct{} // has a token when it is to look around
}

func (r *messageReader) init(p *nativePipe, s transport.Stream) {
	r.pipe = p
	r.resume = make(chan struct{}, 1)
	var src io.Reader = s
	if poll, ok := s.(transport.Poller); ok {
		r.poll, src = poll, tryReader{poll}
	}
	r.src = bufio.NewReaderSize(src, readBuffer)
}

// tryReader says errNothing where a stream has nothing.
type tryReader struct{ poll transport.Poller }

func (r tryReader) Read(p []byte) (int, error) {
	n, err := r.poll.TryRead(p)
	if n == 0 && err == nil {
		err = errNothing
	}
	return n, err
}

// read returns the next message when all of it is there or, if early is set, when
// all is but many inline bytes. Its body is not decoded unless it came early. The
// caller holds mu.
func (r *messageReader) read(early bool) (*nativeIncoming, error) {
	if r.err != nil {
		return nil, r.err
	}
	in, err := r.advance(early)
	if err != nil && err != errNothing {
		r.err = err
	}
	return in, err
}

func (r *messageReader) advance(early bool) (*nativeIncoming, error) {
	if err := r.finishOpen(); err != nil {
		return nil, midMessage(err)
	}
	if r.in == nil {
		if err := r.begin(); err != nil {
			return nil, err
		}
	}
	in := r.in
	if early && len(in.frame) == 0 && r.readHead() {
		r.in, r.open = nil, in
		r.opened++
		return in, in.decodeHead(r.header.Length)
	}
	var err error
	if in.frame, err = readOn(r.src, in.frame, r.header.Rest(), &in.memory, 0); err != nil {
		return nil, midMessage(err)
	}
	r.in = nil
	r.crowded.Store(r.among || r.src.Buffered() > 0)
	r.came.Store(true)
	in.body, err = r.header.Body(in.frame)
	return in, nativeError(err)
}

// begin reads a header.
func (r *messageReader) begin() error {
	r.among = r.poll == nil && r.src.Buffered() > 0
	p, err := r.src.Peek(native.HeaderSize)
	if err != nil {
		if len(p) > 0 {
			err = midMessage(err)
		}
		return err
	}
	h, err := native.DecodeMessageHeader(p, r.pipe.context.limits.native())
	if err != nil {
		return nativeError(err)
	}
	_, _ = r.src.Discard(native.HeaderSize)
	r.in, r.header = r.pipe.newIncoming(), h
	return nil
}

// readHead reads the body up to its inline bytes, if these are worth a wait in the
// stream for the memory that they go to.
func (r *messageReader) readHead() bool {
	if r.header.CRC || r.header.Length <= readBuffer {
		return false
	}
	p, _ := r.src.Peek(r.src.Buffered())
	n := native.PlainHead(p)
	if n == 0 {
		return false
	}
	r.in.frame = append(r.in.frame, p[:n]...)
	_, _ = r.src.Discard(n)
	return true
}

// finishOpen takes what is there of the inline bytes before the next header.
func (r *messageReader) finishOpen() error {
	if r.open != nil {
		if err := r.open.takeOn(r.src); err != nil {
			return err
		}
		r.open.arrived()
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

// forgo lets the inline bytes of a message go by, and reports whether any were still
// coming; from then on nobody touches the memory that they were going to.
func (r *messageReader) forgo(in *nativeIncoming) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open != in {
		return false
	}
	r.open, r.skip = nil, in.coming
	in.into = nil
	r.mind()
	return true
}

// fail ends reading.
func (r *messageReader) fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	return err
}

// readOn reads into buf until it has n bytes, and reallocates it as it grows: by growStep
// or double at a time, so that a large n alone costs little memory. held is charged for it,
// in addition to beside bytes of the same charge for something else.
func readOn(src io.Reader, buf []byte, n int, held *charge, beside int) ([]byte, error) {
	for len(buf) < n {
		step := min(n-len(buf), max(growStep, len(buf), cap(buf)-len(buf)))
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
