package ringnet

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

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A bell is two bytes, little-endian: what happened, to which place, and whether
// the place is one of the sender's own segment.
type bell uint16

const (
	bellReadable bell = iota // there are bytes, or the end of them
	bellWritable             // there is room, or nobody who reads
	bellOpened               // a stream was opened at the place
	bellSegment              // the sender's segment comes with this bell

	bellKind  bell = 3
	bellOwn   bell = 1 << 15
	bellPlace      = 2 // shift

	bellSize = 2
)

// maxPlaces is what a bell can tell apart.
const maxPlaces = int(bellOwn>>bellPlace) - 1

func (b bell) kind() bell { return b & bellKind }
func (b bell) place() int { return int(b&^bellOwn) >> bellPlace }
func (b bell) own() bool  { return b&bellOwn != 0 }

// bond is the socket between two processes.
type bond struct {
	sock *net.UnixConn
	raw  syscall.RawConn
	ear  *ear
	done chan struct{} // closed at the end

	mu  sync.Mutex
	err error // why

	ringing  sync.Mutex
	patience time.Duration // hearing
	out      [bellSize]byte
	sent     error

	send, sendLater func(fd uintptr) bool // methods of it
}

// listener is told what comes through a bond, by one goroutine. An error ends the
// bond.
type listener interface {
	rang(bell) error
	arrived(*os.File) error // is the owner of the file
}

func (b *bond) init(sock *net.UnixConn) (err error) {
	b.sock, b.patience = sock, hearing
	if b.raw, err = sock.SyscallConn(); err != nil {
		return err
	}
	b.ear, err = newEar(sock)
	b.done = make(chan struct{})
	b.send, b.sendLater = b.write, b.writeLater
	return err
}

// hearing is how long a peer that has as many bells before it as fit may take to
// hear one.
const hearing = 3 * time.Second

// ring tells the peer. It waits only for one that lets bells come together until no
// more fit.
func (b *bond) ring(what bell) {
	b.ringing.Lock()
	binary.LittleEndian.PutUint16(b.out[:], uint16(what))
	step.Here()
	err := b.strike(b.send)
	if errors.Is(err, unix.EAGAIN) {
		_ = b.sock.SetWriteDeadline(time.Now().Add(b.patience))
		err = b.strike(b.sendLater)
		_ = b.sock.SetWriteDeadline(time.Time{})
	}
	for range shortages {
		if !errors.Is(err, unix.ENOBUFS) {
			break
		}
		pause()
		err = b.strike(b.send)
	}
	b.ringing.Unlock()
	if errors.Is(err, unix.ENOBUFS) {
		b.end(os.NewSyscallError("write", err)) // the peer might wait for this bell for ever
	}
	_ = b.deaf(err) // who is gone is noticed by listen
}

// shortages is how often a bell is tried again for which the system has no memory.
const shortages = 100

func pause() {
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	<-t.C
}

// deaf ends the bond with a peer that did not hear in time.
func (b *bond) deaf(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: it does not listen to its bells", ErrCorrupt)
		b.end(err)
	}
	return err
}

// strike writes by one of the methods below.
func (b *bond) strike(send func(fd uintptr) bool) error {
	if err := b.raw.Write(send); err != nil {
		return err
	}
	return b.sent
}

// writeLater is write that waits for room.
func (b *bond) writeLater(fd uintptr) bool {
	b.write(fd)
	return b.sent != unix.EAGAIN
}

func (b *bond) write(fd uintptr) bool {
	_, b.sent = unix.Write(int(fd), b.out[:])
	for b.sent == unix.EINTR {
		_, b.sent = unix.Write(int(fd), b.out[:])
	}
	return true
}

// hand gives the peer this end's segment. It waits no longer than ring.
func (b *bond) hand(f *os.File) error {
	b.ringing.Lock()
	defer b.ringing.Unlock()
	binary.LittleEndian.PutUint16(b.out[:], uint16(bellSegment))
	_ = b.sock.SetWriteDeadline(time.Now().Add(b.patience))
	step.Here()
	_, _, err := b.sock.WriteMsgUnix(b.out[:], unix.UnixRights(int(f.Fd())), nil)
	_ = b.sock.SetWriteDeadline(time.Time{})
	return b.deaf(err)
}

// listen tells l what comes until the bond ends, and says why it did.
func (b *bond) listen(l listener) {
	var bytes [64]byte
	have := 0
	for {
		n, oob, flags, err := b.ear.hear(bytes[have:])
		if errors.Is(err, os.ErrDeadlineExceeded) { // meant for who read before
			_ = b.sock.SetReadDeadline(time.Time{})
			continue
		}
		step.Here()
		if n == 0 && err == nil {
			err = io.EOF
		}
		if err == nil {
			err = take(oob, flags, l)
		}
		for have += n; err == nil && have >= bellSize; have -= bellSize {
			err = l.rang(bell(binary.LittleEndian.Uint16(bytes[:])))
			copy(bytes[:], bytes[bellSize:have])
		}
		if err != nil {
			b.end(cause(err))
			return
		}
	}
}

// take gives l the file that came along with bells.
func take(oob []byte, flags int, l listener) error {
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
	return l.arrived(files[0])
}

// cause is what the end of a socket means: a peer that is gone, however, wrote
// nothing more.
func cause(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return io.EOF
	}
	if errors.Is(err, net.ErrClosed) {
		return transport.ErrClosed
	}
	return err
}

// end makes err why the bond has ended, unless it has.
func (b *bond) end(err error) {
	if b.note(err) {
		b.sock.Close() // which waits for who is at it
	}
}

// note is end but for the socket, and reports whether the bond had not ended yet.
func (b *bond) note(err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return false
	}
	b.err = err
	close(b.done)
	return true
}

func (b *bond) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
