package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// otherUser is a user id other than that of the tests.
const otherUser = 65534

// peers are the roles of child processes. They print a line when they are ready, and most exit at
// the end of their input.
var peers = map[string]func(addr string) error{
	"echo":          func(addr string) error { return echo(New(), addr) },
	"echo by token": func(addr string) error { return echo(New(triggers), addr) },
	"half":          func(addr string) error { return sendFrameAndHalf(New(), addr) },
	"half by token": func(addr string) error { return sendFrameAndHalf(New(triggers), addr) },
	"idle":          func(addr string) error { return idle(New(), addr) },
	"idle by token": func(addr string) error { return idle(New(triggers), addr) },
	"tokens":        func(string) error { return sendTriggers() },
	"shrinker":      shrinkDuringWrite,
	"other user dials": func(addr string) error {
		if err := syscall.Setuid(otherUser); err != nil {
			return err
		}
		return echo(New(WithOtherUsers()), addr)
	},
	"other user listens": func(string) error {
		if err := syscall.Setuid(otherUser); err != nil {
			return err
		}
		return listenWithoutReading()
	},
}

// echo is a child process that dials addr and sends each frame back until the other end closes.
func echo(tr *Transport, addr string) error {
	c, err := tr.Dial(context.Background(), addr)
	if err != nil {
		fmt.Println(err)
		return nil
	}
	defer c.Close()
	fmt.Println("ready")
	for {
		n, err := c.NextFrame()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		p := make([]byte, n)
		if err := c.ReadBody(p); err != nil {
			return err
		}
		if err := c.WriteFrames(transport.Frame{p}); err != nil {
			return err
		}
	}
}

// sendFrameAndHalf is a child process that dials addr and sends a frame and the first half of
// another one. It then waits until its input ends.
func sendFrameAndHalf(tr *Transport, addr string) error {
	c, err := tr.Dial(context.Background(), addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.WriteFrames(transport.Frame{[]byte("whole")}); err != nil {
		return err
	}
	s, err := c.(transport.Multiplexer).Stream()
	if err != nil {
		return err
	}
	if _, err := s.Write(append([]byte{8, 0, 0, 0}, "half"...)); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// maxIdleLoad is which part of a core a process may take in which nothing happens. The race
// detector takes some, too.
var maxIdleLoad = race.Pick(0.01, 0.03)

// idle is a child process that dials addr, sends back one frame, and prints which fraction of a
// core the process takes while it waits for another one. It fails if it receives one.
func idle(tr *Transport, addr string) error {
	c, err := tr.Dial(context.Background(), addr)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	n, err := c.NextFrame()
	if err != nil {
		return err
	}
	p := make([]byte, n)
	if err := errors.Join(c.ReadBody(p), c.WriteFrames(transport.Frame{p})); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		_, err := c.NextFrame()
		waited <- err
	}()
	fmt.Println(testwait.CPUShare(2*time.Second, maxIdleLoad))
	err = errors.Join(c.Close(), <-waited)
	if errors.Is(err, transport.ErrClosed) {
		return nil
	}
	return fmt.Errorf("not left in peace: %v", err)
}

// sendTriggers is a child process that sends the triggers 0 and 2 to the ring in the files 3 and 4.
func sendTriggers() error {
	m, err := mapRing(os.NewFile(3, "header"), os.NewFile(4, "data"))
	if err != nil {
		return err
	}
	l := newPeerReactor(m, [2]uint32{0, 2}, func() bool { return false })
	defer l.close()
	return errors.Join(l.send(l.inbox, new(deadline.Deadline), newWakeup()), l.send(l.outbox, new(deadline.Deadline), newWakeup()))
}

// listenWithoutReading is a child process that prints the address of a listener, accepts no
// connection from it, and returns when its input ends. The handshakes of its clients succeed.
func listenWithoutReading() error {
	l, err := New(WithOtherUsers()).Listen(context.Background(), "")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
