package samehost_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// restrictLater is a role: it reads a message, applies the restriction with this name to its
// process, sends the message back, and then echoes messages. It returns the first error.
func restrictLater(ctx context.Context, p *pipe.Pipe, name string) error {
	m, err := readMessage(ctx, p)
	if err != nil {
		return err
	}
	if err := restrictions[name](); err != nil {
		return err
	}
	if err := p.Write(ctx, m); err != nil {
		return err
	}
	return routeRoles["echo"](ctx, p)
}

// TestDeniedOncePipeIsOpen checks that if a process loses the right to create shared memory while a
// pipe is open, large tensors still move in both directions, through the shared memory that exists.
func TestDeniedOncePipeIsOpen(t *testing.T) {
	for _, of := range []string{"fsize", "memfd", "full"} {
		for _, c := range variants(0) {
			t.Run(of+"/"+string(c.dialect)+"/"+c.child(), func(t *testing.T) { worksAfterRestriction(t, of, c.dialect, c.listens) })
		}
	}
}

func worksAfterRestriction(t *testing.T, of string, dialect pipe.Dialect, listens bool) {
	w := routeOf("shm+basic")
	w.skipUnlessViable(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kid, p := w.connect(ctx, t, dialect, "restrict-"+of, listens)
	w.requireRoute(t, p)
	require.NoError(t, sendAndCompare(ctx, p, testMessages()[0]))
	const most = 8 << 20
	data := pseudoRandom(most)
	for _, size := range []int{1 << 20, 3<<20 + 1, most} {
		for _, target := range []device.Device{device.CPU(), {}} {
			large := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data[:size]), TargetDevice: target}}}
			require.NoError(t, sendAndCompare(ctx, p, large), "%d bytes", size)
		}
	}
	require.NoError(t, p.Close())
	require.NoError(t, kid.cmd.Wait())
}

// connect starts a child that runs role on the route w, opens a pipe to it, and returns the child
// and this end of the pipe. The child listens if listens is true, and dials otherwise. connect
// fails the test if the pipe cannot be opened.
func (w route) connect(ctx context.Context, t *testing.T, dialect pipe.Dialect, role string, listens bool) (*child, *pipe.Pipe) {
	t.Helper()
	c, err := w.newContext("parent", dialect)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	s := survivor{route: w, dialect: dialect}
	if listens {
		kid := startChild(t, s.childArgs("listen", role), nil)
		require.Equal(t, begun, kid.line())
		p, err := c.Dial(ctx, kid.line()[len(address):])
		require.NoError(t, err)
		return kid, p
	}
	l, url, err := w.listen(ctx, c)
	require.NoError(t, err)
	kid := startChild(t, s.childArgs(url, role), nil)
	p, err := l.Accept(ctx)
	require.NoError(t, err)
	return kid, p
}

// runOutOfMemory is a role: it reads a message, denies its process further shared memory, echoes
// messages until that fails, and prints whether the error is ErrPeerLost and whether it is ENOMEM.
func runOutOfMemory(ctx context.Context, p *pipe.Pipe) error {
	m, err := readMessage(ctx, p)
	if err != nil {
		return err
	}
	if err := restrictions["pages"](); err != nil {
		return err
	}
	if err = p.Write(ctx, m); err == nil {
		err = echoMessages(ctx, p)
	}
	fmt.Println("ErrPeerLost", errors.Is(err, pipe.ErrPeerLost), "ENOMEM", errors.Is(err, syscall.ENOMEM))
	return nil
}

// TestLackOfMemoryIsNotPeerLost checks that if a process cannot allocate more shared memory for an
// open pipe, its error is ENOMEM and not ErrPeerLost, and the call of the other end fails.
func TestLackOfMemoryIsNotPeerLost(t *testing.T) {
	w := routeOf("shm+basic")
	w.skipUnlessViable(t)
	for _, c := range variants(0) {
		t.Run(string(c.dialect)+"/"+c.child(), func(t *testing.T) {
			kid, p := w.connect(t.Context(), t, c.dialect, "out-of-memory", c.listens)
			require.NoError(t, sendAndCompare(t.Context(), p, testMessages()[0]))
			large := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(pseudoRandom(8 << 20)), TargetDevice: device.CPU()}}}
			asked := testwait.Start(func() error { return sendAndCompare(t.Context(), p, large) })
			line := kid.waitLine(t)
			for line == begun { // a child that listens prints it before the address
				line = kid.waitLine(t)
			}
			require.Equal(t, "ErrPeerLost false ENOMEM true", line)
			require.Error(t, testwait.Finish(t, asked))
			p.Abort(nil)
		})
	}
}
