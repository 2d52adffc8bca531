package ringsession

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/socket"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// doorbell is a notification to the peer, sent as two little-endian bytes. It consists of an event,
// the number of a slot, and a bit that is set if the slot is for streams that the sender opens.
type doorbell uint16

const (
	doorbellReadable doorbell = iota // bytes, or the end of the stream, can be read
	doorbellWritable                 // there is space to write, or the reader has closed
	doorbellOpened                   // the sender has opened a stream in the slot
	doorbellSegment                  // the sender's next segment is attached

	doorbellEvent     doorbell = 3
	doorbellOwn       doorbell = 1 << 15 // the slot is for streams that the sender opens
	doorbellSlotShift          = 2

	doorbellSize = 2
)

// maxSlots is the number of slots that a doorbell can distinguish.
const maxSlots = int(doorbellOwn>>doorbellSlotShift) - 1

func (d doorbell) event() doorbell { return d & doorbellEvent }
func (d doorbell) slot() int       { return int(d&^doorbellOwn) >> doorbellSlotShift }
func (d doorbell) own() bool       { return d&doorbellOwn != 0 }

// peerSocket is the Unix socket between the two processes of a session, which owns it. It carries
// doorbells and segments, and its end shows that the peer has closed the session or died.
type peerSocket struct {
	sock     *net.UnixConn
	raw      syscall.RawConn
	receiver *receiver
	done     chan struct{} // closed when the session ends

	mu  sync.Mutex
	err error // why the session has ended; nil before

	sending     sync.Mutex    // guards the fields below
	sendTimeout time.Duration // of a doorbell or a segment
	out         [doorbellSize]byte
	sendErr     error // of the last write

	// Callbacks for raw.Write, method values so that a notification does not allocate.
	trySend, blockingSend func(fd uintptr) bool
}

// doorbellHandler handles the doorbells and segments of the peer. One goroutine, in receive, calls
// its methods. An error that they return ends the session.
type doorbellHandler interface {
	handleDoorbell(doorbell) error
	handleSegment(*os.File) error // takes ownership of the file
}

// defaultSendTimeout bounds how long a peer whose socket buffer is full may take to read
// from it.
const defaultSendTimeout = 3 * time.Second

func (p *peerSocket) init(sock *net.UnixConn) (err error) {
	p.sock, p.sendTimeout = sock, defaultSendTimeout
	if p.raw, err = sock.SyscallConn(); err != nil {
		return err
	}
	p.receiver, err = newReceiver(sock)
	p.done = make(chan struct{})
	p.trySend = p.write
	p.blockingSend = func(fd uintptr) bool {
		p.write(fd)
		return p.sendErr != unix.EAGAIN
	}
	return err
}

// notify sends the doorbell d to the peer. It blocks while the peer lets doorbells fill the socket
// buffer, for at most p.sendTimeout, or while the system has no memory for the doorbell, for about
// 0.1 s. After either of these times it ends the session. It returns no error: after any other
// failure of the socket, receive ends the session. It acquires sending.
func (p *peerSocket) notify(d doorbell) {
	p.sending.Lock()
	binary.LittleEndian.PutUint16(p.out[:], uint16(d))
	failpoint.Here()
	err := socket.Retry(func() error {
		err := p.send(p.trySend)
		if errors.Is(err, unix.EAGAIN) {
			_ = p.sock.SetWriteDeadline(time.Now().Add(p.sendTimeout))
			err = p.send(p.blockingSend)
			_ = p.sock.SetWriteDeadline(time.Time{})
		}
		return err
	})
	p.sending.Unlock()
	if errors.Is(err, unix.ENOBUFS) {
		p.end(os.NewSyscallError("write", err)) // the peer could wait for this doorbell indefinitely
	}
	_ = p.endOnTimeout(err) // other errors end the session in receive
}

// endOnTimeout handles err, the result of sending to the peer. If err is a timeout, the peer does
// not read its doorbells: endOnTimeout ends the session and returns an error that matches
// ErrCorrupt. Any other err, and nil, are returned unchanged.
func (p *peerSocket) endOnTimeout(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: it does not read its doorbells", ErrCorrupt)
		p.end(err)
	}
	return err
}

func (p *peerSocket) send(attempt func(fd uintptr) bool) error {
	if err := p.raw.Write(attempt); err != nil {
		return err
	}
	return p.sendErr
}

func (p *peerSocket) write(fd uintptr) bool {
	_, p.sendErr = unix.Write(int(fd), p.out[:])
	for p.sendErr == unix.EINTR {
		_, p.sendErr = unix.Write(int(fd), p.out[:])
	}
	return true
}

// sendSegment sends the peer the doorbell for a new segment with a copy of f, the segment's file;
// the caller keeps f. While the socket is full it blocks, for at most p.sendTimeout. After that
// time it ends the session and returns an error that matches ErrCorrupt. Other errors are those of
// the socket. It acquires sending.
func (p *peerSocket) sendSegment(f *os.File) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	binary.LittleEndian.PutUint16(p.out[:], uint16(doorbellSegment))
	failpoint.Here()
	return p.endOnTimeout(socket.Send(p.sock, p.out[:], f, p.sendTimeout))
}

// receive reads doorbells and segments from the socket and passes them to h, until the socket ends
// or h returns an error. It then ends the session with that error, as closeReason converts it: at
// the end of the socket the reason is io.EOF. It is called once, on a goroutine of the session.
func (p *peerSocket) receive(h doorbellHandler) {
	var buf [64]byte
	have := 0
	for {
		n, oob, flags, err := p.receiver.receive(buf[have:])
		if errors.Is(err, os.ErrDeadlineExceeded) { // a deadline of the previous owner of the socket
			_ = p.sock.SetReadDeadline(time.Time{})
			continue
		}
		failpoint.Here()
		if n == 0 && err == nil {
			err = io.EOF
		}
		if err == nil {
			err = deliverSegment(oob, flags, h)
		}
		for have += n; err == nil && have >= doorbellSize; have -= doorbellSize {
			err = h.handleDoorbell(doorbell(binary.LittleEndian.Uint16(buf[:])))
			copy(buf[:], buf[doorbellSize:have])
		}
		if err != nil {
			p.end(closeReason(err))
			return
		}
	}
}

// deliverSegment passes the file that was attached to a message to h.handleSegment, which owns the
// file from then on, and returns the error of that call. oob holds the control bytes of the
// message, and flags are its flags; neither is kept. Without a file deliverSegment does nothing and
// returns nil. The error matches ErrCorrupt if something other than exactly one file was attached.
func deliverSegment(oob []byte, flags int, h doorbellHandler) error {
	if len(oob) == 0 && flags&unix.MSG_CTRUNC == 0 {
		return nil
	}
	files, err := segment.Received(oob, flags, 1)
	if errors.Is(err, segment.ErrFile) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err != nil {
		return err
	}
	return h.handleSegment(files[0])
}

// closeReason returns the reason for which a session ends after err: io.EOF if err matches io.EOF
// or ECONNRESET, because the peer closed or died; [transport.ErrClosed] if err matches
// net.ErrClosed, because this process closed the socket; and otherwise err itself.
func closeReason(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return io.EOF
	}
	if errors.Is(err, net.ErrClosed) {
		return transport.ErrClosed
	}
	return err
}

// end ends the session with the reason err, which failure returns from then on: it closes p.done
// and the socket. If the session has ended already it does nothing.
func (p *peerSocket) end(err error) {
	p.mu.Lock()
	first := p.err == nil
	if first {
		p.err = err
		close(p.done)
	}
	p.mu.Unlock()
	if first {
		p.sock.Close() // blocks until reads and writes have returned
	}
}

// failure returns the reason for which the session has ended, or nil while it is open.
func (p *peerSocket) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
