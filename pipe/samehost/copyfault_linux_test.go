package samehost_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// protected is memory that may only be used so, to the end of the process.
func protected(how int) ([]byte, error) {
	return unix.Mmap(-1, 0, much, how, unix.MAP_PRIVATE|unix.MAP_ANON)
}

// said is the beginning of the line in which a child says what came of a call.
const said = "it ended: "

// give sends one large tensor out of such memory, says what came of that, and echoes.
func give(how int) func(*pipe.Pipe) error {
	return func(p *pipe.Pipe) error {
		memory, err := protected(how)
		if err != nil {
			return err
		}
		err = p.Write(context.Background(), largeTensor(memory))
		return sayAndEcho(p, err)
	}
}

func largeTensor(memory []byte) *pipe.Message {
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(memory), TargetDevice: device.CPU()}}}
}

// sayAndEcho goes on as far as that is possible.
func sayAndEcho(p *pipe.Pipe, err error) error {
	fmt.Println(said+"ErrForbidden", errors.Is(err, pipe.ErrForbidden), "ErrCopy", errors.Is(err, pipe.ErrCopy),
		"ErrPeerLost", errors.Is(err, pipe.ErrPeerLost), "none", err == nil)
	if err := echo(p); !errors.Is(err, pipe.ErrForbidden) && !errors.Is(err, pipe.ErrCopy) {
		return err
	}
	return nil
}

// filtered has the system refuse to copy once the pipe has carried a message, then reads
// a large tensor, and says what came of that.
func filtered(reason syscall.Errno) func(*pipe.Pipe) error {
	return func(p *pipe.Pipe) error {
		in, err := p.Next(context.Background())
		if err != nil {
			return err
		}
		err = errors.Join(in.Read(context.Background(), pipe.NewAllocation(in.Descriptor())),
			alone.Forbid(unix.SYS_PROCESS_VM_READV, reason))
		if err != nil {
			return err
		}
		if in, err = p.Next(context.Background()); err == nil {
			err = in.Read(context.Background(), pipe.NewAllocation(in.Descriptor()))
		}
		return sayAndEcho(p, err)
	}
}

// heard is the next line that a child says, which a pipe that hangs may keep from it.
func (c *child) heard(t *testing.T) string {
	t.Helper()
	line := patience.Finish(t, patience.Start(func() string { line, _ := c.said.ReadString('\n'); return line }))
	return strings.TrimSuffix(line, "\n")
}

// Memory that the system cannot copy, because it may not be read at the sender or not
// be written to at the receiver, costs the tensor, or, in the compatible dialect, the
// pipe. The receiver has not lost its peer, and the sender is told.
func TestTensorCannotBeCopied(t *testing.T) {
	needDirectCopies(t)
	for role, how := range map[string]int{"give-none": unix.PROT_READ | unix.PROT_WRITE, "give": unix.PROT_READ} {
		t.Run(role, func(t *testing.T) {
			inBoth(t, func(t *testing.T, m meeting) {
				m.role = role
				notCopied(t, m, how)
			})
		})
	}
}

func notCopied(t *testing.T, m meeting, how int) {
	kid, p := mustMeet(t, m)
	require.Regexp(t, "cpu:0 to cpu:0 +"+cma.Name+"\n", kid.plan())
	dst, err := protected(how)
	require.NoError(t, err)
	defer unix.Munmap(dst)
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	err = patience.Finish(t, patience.Start(func() error {
		return in.Read(t.Context(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(dst)}})
	}))
	require.ErrorIs(t, err, pipe.ErrCopy)
	require.ErrorIs(t, err, syscall.EFAULT)
	require.NotErrorIs(t, err, pipe.ErrPeerLost)
	if m.dialect == pipe.DialectNative {
		require.Contains(t, kid.heard(t), "none true")
		roundTrip(t, p, []byte("still there"))
		require.NoError(t, p.Close())
		return
	}
	require.Contains(t, kid.heard(t), "none false")
	_, err = p.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrCopy)
	require.NotErrorIs(t, err, pipe.ErrPeerLost)
}

// So does a filter that comes into force once the pipe is open, or a lack of memory, at
// the receiver.
func TestCopiesEndWhilePipeIsOpen(t *testing.T) {
	needDirectCopies(t)
	for role, want := range map[string]string{
		"filtered-EPERM":  "ErrForbidden true ErrCopy false",
		"filtered-ENOSYS": "ErrForbidden true ErrCopy false",
		"filtered-ENOMEM": "ErrForbidden false ErrCopy true",
	} {
		t.Run(role, func(t *testing.T) {
			inBoth(t, func(t *testing.T, m meeting) {
				m.role = role
				kid, p := mustMeet(t, m)
				require.Regexp(t, "cpu:0 to cpu:0 +"+cma.Name+"\n", kid.plan())
				require.NoError(t, p.Write(t.Context(), &pipe.Message{Metadata: []byte("now")}))
				written := patience.Start(func() error { return p.Write(t.Context(), largeTensor(make([]byte, much))) })
				heard := kid.heard(t)
				require.Equal(t, said+want+" ErrPeerLost false none false", heard)
				err := patience.Finish(t, written)
				if m.dialect == pipe.DialectNative {
					require.NoError(t, err)
					roundTrip(t, p, []byte("still there"))
					require.NoError(t, p.Close())
					return
				}
				require.Error(t, err)
			})
		})
	}
}
