package wait

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Writer writes to a socket what there is room for.
type Writer struct {
	socket  Socket
	raw     syscall.RawConn
	attempt func(fd uintptr) bool // a method of it

	// Of the call under way.
	src []byte
	n   int
	err error // of the system call
}

// NewWriter returns a Writer of s. The error says that s is no socket.
func NewWriter(s Socket) (*Writer, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &Writer{socket: s, raw: raw}
	w.attempt = w.write
	return w, nil
}

// TryWrite writes as much of p as the socket takes at once, and returns how much that
// was. It is for one goroutine at a time, waits only while somebody else is in a Write of
// the socket, and allocates nothing. Its errors are those of the socket's Write.
func (w *Writer) TryWrite(p []byte) (int, error) {
	w.src, w.n = p, 0
	err := w.raw.Write(w.attempt)
	w.src = nil
	switch {
	case err != nil:
		return 0, w.failure(cause(err))
	case w.err != nil:
		return w.n, w.failure(os.NewSyscallError("write", w.err))
	}
	return w.n, nil
}

// write asks the kernel until it has no more room.
func (w *Writer) write(fd uintptr) bool {
	for w.n < len(w.src) {
		var n int
		n, w.err = unix.Write(int(fd), w.src[w.n:])
		if w.err == unix.EINTR {
			continue
		}
		if w.err == unix.EAGAIN {
			w.err = nil
			break
		}
		if w.err != nil {
			break
		}
		w.n += n
	}
	return true
}

// failure looks like an error of the socket's own Write.
func (w *Writer) failure(err error) error {
	local := w.socket.LocalAddr()
	return &net.OpError{Op: "write", Net: local.Network(), Source: local, Addr: w.socket.RemoteAddr(), Err: err}
}
