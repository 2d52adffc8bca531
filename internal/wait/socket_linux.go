package wait

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reader reads from a socket and spins before it blocks. One goroutine at a time uses it. It does
// not own the socket.
type Reader struct {
	socket  Socket
	raw     syscall.RawConn
	spinner socketSpinner
	attempt func(fd uintptr) bool // attemptRead
	ready   func() bool           // read

	// Of a Reader with busy polling; otherwise nil.
	busy   *BusyWaiter
	once   func(fd uintptr) bool // attemptOnce
	woken  chan struct{}
	failed error // of the socket

	fd     int
	dst    []byte
	asleep bool
	n      int
	err    error // of the system call
}

// NewReader returns a Reader of s, which the caller keeps. The Reader spins as c determines. NewReader
// returns an error if s has no descriptor, for example because it is closed.
func NewReader(s Socket, c Config) (*Reader, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &Reader{socket: s, raw: raw}
	r.spinner.init(c.Spin, &registration{arbiter: &process})
	r.attempt, r.ready = r.attemptRead, r.read
	if c.Busy {
		r.woken = make(chan struct{}, 1)
		r.once, r.busy = r.attemptOnce, NewBusyWaiter(r.tryRead, func() { r.woken <- struct{}{} })
	}
	return r, nil
}

// Read blocks until bytes arrive on the socket, copies some to p and returns how many. It may spin
// before it blocks. It returns the same errors as the Read of the socket, io.EOF at the end
// included, and observes read deadlines and Close, which a spin may delay by its duration. For an
// empty p it returns 0 and nil. It allocates nothing, except for busy polling with one processor,
// and keeps p only during the call.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.dst, r.asleep = p, false
	err := r.raw.Read(r.attempt)
	if err == nil && r.asleep && r.busy != nil {
		r.busy.Begin()
		<-r.woken
		err = r.failed
	}
	r.dst = nil
	switch {
	case err != nil:
		return 0, r.failure(cause(err))
	case r.err != nil:
		return 0, r.failure(os.NewSyscallError("read", r.err))
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// attemptRead is the callback by which Read reads the socket fd. The runtime calls it when Read
// begins and after each wake-up. It reads; if there is nothing yet it may spin, the first time, if
// the spin arbiter permits that. It returns true if Read can return. If it returns false the
// runtime blocks the goroutine until the socket may be readable.
func (r *Reader) attemptRead(fd uintptr) bool {
	r.fd = int(fd)
	r.spinner.registration.fd.Store(int32(fd))
	if r.read() || !r.asleep && r.spinner.poll(r.ready) {
		r.spinner.registration.arrived()
		return true
	}
	r.asleep = true
	return r.busy != nil
}

// tryRead reads from the socket without blocking and reports whether there is a result: bytes, the end of the
// stream, a deadline that has passed, or an error, also that the socket was closed. It is called for a Reader that
// waits with busy polling.
func (r *Reader) tryRead() bool {
	r.failed = r.raw.Read(r.once)
	return r.failed != nil || !r.asleep
}

// attemptOnce is the callback by which tryRead reads the socket fd. It clears r.asleep if there was input. It
// always returns true, so that the runtime does not block.
func (r *Reader) attemptOnce(fd uintptr) bool {
	r.fd = int(fd)
	if r.read() {
		r.asleep = false
		r.spinner.registration.arrived()
	}
	return true
}

// read calls read(2) without blocking, with r.dst as the destination, and stores the result in r.n
// and r.err. It returns true if the result is bytes, the end of the stream or an error, and false
// if the socket has nothing to read yet.
func (r *Reader) read() bool {
	for {
		r.n, r.err = unix.Read(r.fd, r.dst)
		if r.err != unix.EINTR {
			return r.err != unix.EAGAIN
		}
	}
}

func (r *Reader) failure(err error) error { return readFailure(r.socket, err) }

// readFailure returns err wrapped in a *net.OpError, like the errors of the socket's Read.
func readFailure(s Socket, err error) error {
	local := s.LocalAddr()
	return &net.OpError{Op: "read", Net: local.Network(), Source: local, Addr: s.RemoteAddr(), Err: err}
}

// cause returns the error inside err if err contains a *net.OpError, by which package net wraps the
// errors of a raw read or write. Otherwise it returns err.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// Writer writes to a socket without blocking. One goroutine at a time uses it. It does not own the
// socket.
type Writer struct {
	socket  Socket
	raw     syscall.RawConn
	attempt func(fd uintptr) bool // write

	// Of the call under way.
	pieces []unix.Iovec // that are not written yet; nil at the end of a call
	memory []unix.Iovec // of pieces
	n      int
	err    error // of the system call
}

// NewWriter returns a Writer of s, which the caller keeps. It returns an error if s has no
// descriptor, for example because it is closed.
func NewWriter(s Socket) (*Writer, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &Writer{socket: s, raw: raw}
	w.attempt = w.write
	return w, nil
}

// TryWrite writes pieces in order, as much as the socket accepts, and returns how many bytes that
// is, possibly 0, also with an error. It blocks only while another goroutine is in the socket's
// Write. It allocates nothing for a few pieces, and keeps them only during the call. Its errors are
// those of the socket's Write.
func (w *Writer) TryWrite(pieces ...[]byte) (int, error) {
	w.n, w.err = 0, nil
	w.pieces = w.memory[:0]
	for _, p := range pieces {
		if len(p) > 0 {
			w.pieces = append(w.pieces, unix.Iovec{Base: &p[0]})
			w.pieces[len(w.pieces)-1].SetLen(len(p))
		}
	}
	w.memory = w.pieces
	err := w.raw.Write(w.attempt)
	clear(w.memory)
	w.pieces = nil
	switch {
	case err != nil:
		return 0, w.failure(cause(err))
	case w.err != nil:
		return w.n, w.failure(os.NewSyscallError("writev", w.err))
	}
	return w.n, nil
}

// maxPieces is the most pieces that writev(2) takes.
const maxPieces = 1024

// write is the callback by which TryWrite writes to the socket fd: it writes w.pieces until the
// socket is full, and stores the result in w.n and w.err. It always returns true, so that the
// runtime does not block the goroutine.
func (w *Writer) write(fd uintptr) bool {
	for len(w.pieces) > 0 {
		count := min(len(w.pieces), maxPieces)
		n, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&w.pieces[0])), uintptr(count))
		switch errno {
		case 0:
			w.written(int(n))
		case unix.EINTR:
		case unix.EAGAIN:
			return true
		default:
			w.err = errno
			return true
		}
	}
	return true
}

// written removes the first n bytes from w.pieces and adds them to w.n.
func (w *Writer) written(n int) {
	w.n += n
	for len(w.pieces) > 0 && n >= int(w.pieces[0].Len) {
		n -= int(w.pieces[0].Len)
		w.pieces = w.pieces[1:]
	}
	if n > 0 {
		p := &w.pieces[0]
		rest := unsafe.Slice(p.Base, p.Len)[n:]
		p.Base = &rest[0]
		p.SetLen(len(rest))
	}
}

// failure returns err wrapped in a *net.OpError, like the errors of the socket's Write.
func (w *Writer) failure(err error) error {
	local := w.socket.LocalAddr()
	return &net.OpError{Op: "write", Net: local.Network(), Source: local, Addr: w.socket.RemoteAddr(), Err: err}
}
