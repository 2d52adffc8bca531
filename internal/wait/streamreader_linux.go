package wait

import (
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StreamReader reads from a socket that carries long bodies. It never spins. One goroutine at a time
// uses it. It does not own the socket, but no other code may read it or wait for its input.
type StreamReader struct {
	socket  Socket
	raw     syscall.RawConn
	low     lowWater
	attempt func(fd uintptr) bool // attemptRead

	dst   []byte
	body  bool // dst will be filled
	n     int
	err   error     // of the system call
	since time.Time // when the reader blocked; zero if it did not
	slow  bool      // the last time it blocked for more than slowArrival
}

// slowArrival is the time after which a reader that has blocked is woken by each arrival from then on, so that
// progress is seen on a slow network.
const slowArrival = 5 * time.Millisecond

// NewStreamReader returns a StreamReader of s, which the caller keeps. It returns an error if s has no
// descriptor, for example because it is closed.
func NewStreamReader(s Socket) (*StreamReader, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &StreamReader{socket: s, raw: raw}
	r.attempt = r.attemptRead
	return r, nil
}

// Read is like the Read of the socket, and returns the same errors.
func (r *StreamReader) Read(p []byte) (int, error) { return r.read(p, false) }

// ReadBulk does what Read does, for a caller that goes on until p is full. It may wait until 64 KiB
// have arrived, so that the caller is woken less often.
func (r *StreamReader) ReadBulk(p []byte) (int, error) { return r.read(p, true) }

func (r *StreamReader) read(p []byte, body bool) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.dst, r.body, r.since = p, body, time.Time{}
	err := r.raw.Read(r.attempt)
	r.dst = nil
	switch {
	case err != nil:
		return 0, readFailure(r.socket, cause(err))
	case r.err != nil:
		return 0, readFailure(r.socket, os.NewSyscallError("read", r.err))
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// attemptRead is the callback by which read reads the socket fd. The runtime calls it when read begins
// and after each wake-up. If it returns false the runtime blocks the goroutine until the socket may be
// readable.
func (r *StreamReader) attemptRead(fd uintptr) bool {
	if !r.since.IsZero() {
		r.slow = time.Since(r.since) > slowArrival
		r.low.set(fd, quietBytes)
	}
	for {
		r.n, r.err = unix.Read(int(fd), r.dst)
		if r.err != unix.EINTR {
			break
		}
	}
	if r.err != unix.EAGAIN {
		return true
	}
	if r.body && !r.slow {
		r.low.set(fd, min(len(r.dst), quietBytes))
	} else {
		r.low.set(fd, 1)
	}
	r.since = time.Now()
	return false
}
