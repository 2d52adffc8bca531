package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nobody is a user that the tests are not run as.
const nobody = 65534

// peers are the parts of tests that run in processes of their own. They print a
// line when they are ready, and most end with their input.
var peers = map[string]func(addr string) error{
	"echo":          func(addr string) error { return echo(New(), addr) },
	"echo by token": func(addr string) error { return echo(New(tokens), addr) },
	"half":          func(addr string) error { return half(New(), addr) },
	"half by token": func(addr string) error { return half(New(tokens), addr) },
	"idle":          func(addr string) error { return idle(New(), addr) },
	"idle by token": func(addr string) error { return idle(New(tokens), addr) },
	"tokens":        func(string) error { return leaveTokens() },
	"shrinker":      shrinkUnderAWriter,
	"stranger": func(addr string) error {
		if err := syscall.Setuid(nobody); err != nil {
			return err
		}
		return echo(New(WithOtherUsers()), addr)
	},
	"strange listener": func(string) error {
		if err := syscall.Setuid(nobody); err != nil {
			return err
		}
		return listenForNobody()
	},
}

// echo returns frames until the other end has no more.
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

// half sends a frame and the first half of another.
func half(tr *Transport, addr string) error {
	c, err := tr.Dial(context.Background(), addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.WriteFrames(transport.Frame{[]byte("whole")}); err != nil {
		return err
	}
	s, err := c.(transport.Streamer).Stream()
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

// mostIdle is which part of a core a process may take in which nothing happens. The race
// detector takes some, too.
var mostIdle = race.Pick(0.01, 0.03)

// idle sends back one frame, and then says which part of a core it takes while it waits
// for another one.
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
	fmt.Println(patience.Share(2*time.Second, mostIdle))
	err = errors.Join(c.Close(), <-waited)
	if errors.Is(err, transport.ErrClosed) {
		return nil
	}
	return fmt.Errorf("not left in peace: %v", err)
}

// leaveTokens leaves the tokens 0 and 2 in the ring that it inherited.
func leaveTokens() error {
	m, err := open(os.NewFile(3, "header"), os.NewFile(4, "data"))
	if err != nil {
		return err
	}
	l := newLetterbox(m, [2]uint32{0, 2}, func() bool { return false })
	defer l.close()
	return errors.Join(l.leave(l.inbox, new(deadline), newBell()), l.leave(l.outbox, new(deadline), newBell()))
}

// listenForNobody accepts connections and looks at none of them.
func listenForNobody() error {
	l, err := New(WithOtherUsers()).Listen(context.Background(), "")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
