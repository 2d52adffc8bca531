package wait

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SocketPoller reads from a socket without blocking, and waits for its input with and without
// blocking. At a time, one goroutine calls TryRead and one Wait. It does not own the socket, whose
// Read and SetReadDeadline must not be called, and for whose input no other code may wait.
type SocketPoller struct {
	socket       Socket
	raw          syscall.RawConn
	registration registration

	// Of TryRead.
	try  func(fd uintptr)
	dst  []byte
	n    int
	err  error       // of the system call
	long atomic.Bool // it has read more than quietBytes at once

	spinning sync.Mutex // held by Spin
	spinner  socketSpinner

	// Of Wait.
	waiter  socketSpinner
	stop    func() bool           // the argument of Wait
	mayGo   func() bool           // mayReturn
	attempt func(fd uintptr) bool // checkInput
	low     lowWater
	quiet   func(fd uintptr) // makes low high
	asleep  bool
	once    func(fd uintptr) bool // checkOnce
	input   bool                  // result of checkOnce
	failed  error                 // of the last hasInput
	busy    *BusyWaiter           // nil without busy polling
	wakeup  chan struct{}         // of busy

	woken atomic.Bool // Wake was called

	mu       sync.Mutex
	blocked  bool      // Wait blocks, or is about to
	poked    bool      // Wake has replaced the read deadline of the socket
	deadline time.Time // of the caller
}

// NewSocketPoller returns a SocketPoller of s, which the caller keeps. Spin and Wait spin as c
// determines. It returns an error if s has no descriptor, for example because it is closed.
func NewSocketPoller(s Socket, c Config) (*SocketPoller, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &SocketPoller{socket: s, raw: raw}
	p.registration.arbiter = &process
	if err := raw.Control(func(fd uintptr) { p.registration.fd.Store(int32(fd)) }); err != nil {
		return nil, readFailure(s, cause(err))
	}
	p.spinner.init(c.Spin, &p.registration)
	p.waiter.init(c.Spin, &p.registration)
	p.try, p.attempt, p.once, p.mayGo = p.read, p.checkInput, p.checkOnce, p.mayReturn
	p.quiet = func(fd uintptr) {
		if p.long.Load() {
			p.low.set(fd, quietLong)
		} else {
			p.low.set(fd, quietBytes)
		}
	}
	if c.Busy {
		p.wakeup = make(chan struct{}, 1)
		p.busy = NewBusyWaiter(p.hasInput, p.wakeBusy)
	}
	return p, nil
}

// TryRead copies bytes that have arrived to dst and returns how many, 0 and nil if there are none
// yet. The errors are those of the socket's Read, io.EOF at the end included, but not those of a
// deadline. It keeps dst only during the call.
func (p *SocketPoller) TryRead(dst []byte) (int, error) {
	if len(dst) == 0 {
		return 0, nil
	}
	p.dst = dst
	err := p.raw.Control(p.try)
	p.dst = nil
	switch {
	case err != nil:
		return 0, readFailure(p.socket, cause(err))
	case p.err == unix.EAGAIN:
		return 0, nil
	case p.err != nil:
		return 0, readFailure(p.socket, os.NewSyscallError("read", p.err))
	case p.n == 0:
		return 0, io.EOF
	}
	p.registration.arrived()
	if p.n > quietBytes && !p.long.Load() {
		p.long.Store(true)
	}
	return p.n, nil
}

// read is the callback by which TryRead reads the socket fd.
func (p *SocketPoller) read(fd uintptr) {
	for {
		p.n, p.err = unix.Read(int(fd), p.dst)
		if p.err != unix.EINTR {
			return
		}
	}
}

// Spin calls ready, which calls TryRead, until it returns true or the time to spin ends, and reports
// whether it returned true. It returns false at once if the goroutine may not spin now, or another
// one is in Spin. If due is true, because a reply is expected soon, it spins even while other
// connections of the process are active.
func (p *SocketPoller) Spin(ready func() bool, due bool) bool {
	if !p.spinning.TryLock() {
		return false
	}
	defer p.spinning.Unlock()
	if due {
		return p.spinner.pollDue(ready)
	}
	return p.spinner.poll(ready)
}

// Wait waits until the socket may have input, its end and errors included, or Wake is called, and
// returns nil. It first spins, which ends early if stop returns true; it then returns too. The error is
// that of the read deadline, or means that the socket is closed.
func (p *SocketPoller) Wait(stop func() bool) error {
	p.stop, p.failed = stop, nil
	if p.waiter.poll(p.mayGo) {
		p.woken.Store(false)
		if p.failed != nil {
			return readFailure(p.socket, cause(p.failed))
		}
		return nil
	}
	p.mu.Lock()
	p.blocked = true
	p.mu.Unlock()
	var err error
	if !p.woken.Load() && !stop() {
		err = p.block()
		_ = p.raw.Control(p.quiet) // fails if the socket is closed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = false
	p.woken.Store(false)
	if p.poked {
		p.poked = false
		_ = p.socket.SetReadDeadline(p.deadline)
		if err != nil && (p.deadline.IsZero() || time.Now().Before(p.deadline)) && os.IsTimeout(err) {
			return nil
		}
	}
	if err != nil {
		return readFailure(p.socket, cause(err))
	}
	return nil
}

func (p *SocketPoller) mayReturn() bool { return p.woken.Load() || p.stop() || p.hasInput() }

// block blocks until the socket may have input, or Wake is called.
func (p *SocketPoller) block() error {
	if p.busy != nil {
		p.busy.Begin()
		<-p.wakeup
		p.busy.End()
		return p.raw.Read(func(uintptr) bool { return true }) // that of a deadline or of Close
	}
	p.asleep = false
	return p.raw.Read(p.attempt)
}

// checkInput is the callback by which block waits for the socket fd. It returns false once, if there
// is no input; the runtime then blocks the goroutine until there may be some.
func (p *SocketPoller) checkInput(fd uintptr) bool {
	if p.asleep {
		return true
	}
	p.asleep = true
	p.low.set(fd, 1)
	return hasInput(fd)
}

// hasInput reports whether Wait need not block: there is input, a deadline has passed, or the socket
// is closed.
func (p *SocketPoller) hasInput() bool {
	p.failed = p.raw.Read(p.once)
	return p.failed != nil || p.input
}

func (p *SocketPoller) checkOnce(fd uintptr) bool {
	p.input = hasInput(fd)
	return true
}

// Wake makes the current call of Wait return, or the next one.
func (p *SocketPoller) Wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken.Store(true)
	switch {
	case !p.blocked:
	case p.busy != nil:
		p.wakeBusy()
	case !p.poked:
		p.poked = true
		_ = p.socket.SetReadDeadline(time.Unix(1, 0)) // if that fails, so does Wait
	}
}

func (p *SocketPoller) wakeBusy() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

// SetReadDeadline sets the time after which Wait fails, none if t is zero. The error is that of the
// socket.
func (p *SocketPoller) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	if p.poked {
		return nil // Wait sets it
	}
	return p.socket.SetReadDeadline(t)
}
