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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// protected maps hugeSize bytes of new memory with the protection how, a set of PROT bits, and
// returns it. The memory is never unmapped.
func protected(how int) ([]byte, error) {
	return unix.Mmap(-1, 0, hugeSize, how, unix.MAP_PRIVATE|unix.MAP_ANON)
}

// resultPrefix begins the line in which a child reports the result of a call.
const resultPrefix = "result: "

// sendFrom returns a role: it sends a large tensor in memory with the protection how, prints the
// result of Write, and echoes messages.
func sendFrom(how int) func(*pipe.Pipe) error {
	return func(p *pipe.Pipe) error {
		memory, err := protected(how)
		if err != nil {
			return err
		}
		err = p.Write(context.Background(), largeTensor(memory))
		return reportAndEcho(p, err)
	}
}

func largeTensor(memory []byte) *pipe.Message {
	return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(memory), TargetDevice: device.CPU()}}}
}

// reportAndEcho prints a line with the errors that err matches, and then echoes messages until that
// fails. It returns nil if the echo ends with ErrForbidden or ErrCopy, and otherwise the error of
// the echo.
func reportAndEcho(p *pipe.Pipe, err error) error {
	fmt.Println(resultPrefix+"ErrForbidden", errors.Is(err, pipe.ErrForbidden), "ErrCopy", errors.Is(err, pipe.ErrCopy),
		"ErrPeerLost", errors.Is(err, pipe.ErrPeerLost), "none", err == nil)
	if err := echo(p); !errors.Is(err, pipe.ErrForbidden) && !errors.Is(err, pipe.ErrCopy) {
		return err
	}
	return nil
}

// readAfterFilter returns a role: it reads a message, installs a filter that makes process_vm_readv
// fail with reason, reads a large tensor, prints the result of that Read, and echoes messages.
func readAfterFilter(reason syscall.Errno) func(*pipe.Pipe) error {
	return func(p *pipe.Pipe) error {
		in, err := p.Next(context.Background())
		if err != nil {
			return err
		}
		err = errors.Join(in.Read(context.Background(), pipe.NewAllocation(in.Descriptor())),
			subprocess.DenySyscall(unix.SYS_PROCESS_VM_READV, reason))
		if err != nil {
			return err
		}
		if in, err = p.Next(context.Background()); err == nil {
			err = in.Read(context.Background(), pipe.NewAllocation(in.Descriptor()))
		}
		return reportAndEcho(p, err)
	}
}

// waitLine blocks until the child has printed a line and returns it without the line break; it
// returns "" if the output has ended. It fails the test if neither happens in time.
func (c *child) waitLine(t *testing.T) string {
	t.Helper()
	line := testwait.Finish(t, testwait.Start(func() string { line, _ := c.output.ReadString('\n'); return line }))
	return strings.TrimSuffix(line, "\n")
}

// TestTensorCannotBeCopied checks that if cma cannot read the sender's memory or cannot write the
// receiver's, Read fails with ErrCopy, not with ErrPeerLost, and the sender learns of it. In the
// native dialect only that message fails; in the compatible dialect the pipe does.
func TestTensorCannotBeCopied(t *testing.T) {
	skipWithoutCMA(t)
	for role, how := range map[string]int{"send-unreadable": unix.PROT_READ | unix.PROT_WRITE, "send": unix.PROT_READ} {
		t.Run(role, func(t *testing.T) {
			inAllVariants(t, func(t *testing.T, m childSpec) {
				m.role = role
				notCopied(t, m, how)
			})
		})
	}
}

func notCopied(t *testing.T, m childSpec, how int) {
	kid, p := mustConnect(t, m)
	require.Regexp(t, "cpu:0 to cpu:0 +"+cma.Name+"\n", kid.plan())
	dst, err := protected(how)
	require.NoError(t, err)
	defer unix.Munmap(dst)
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	err = testwait.Finish(t, testwait.Start(func() error {
		return in.Read(t.Context(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(dst)}})
	}))
	require.ErrorIs(t, err, pipe.ErrCopy)
	require.ErrorIs(t, err, syscall.EFAULT)
	require.NotErrorIs(t, err, pipe.ErrPeerLost)
	if m.dialect == pipe.DialectNative {
		require.Contains(t, kid.waitLine(t), "none true")
		roundTrip(t, p, []byte("still open"))
		require.NoError(t, p.Close())
		return
	}
	require.Contains(t, kid.waitLine(t), "none false")
	_, err = p.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrCopy)
	require.NotErrorIs(t, err, pipe.ErrPeerLost)
}

// TestCopiesDeniedWhilePipeIsOpen checks that if a filter denies cma's system call while the pipe
// is open, Read fails with ErrForbidden; if the call fails for lack of memory, with ErrCopy.
// Neither is ErrPeerLost. In the native dialect the pipe stays open; in the compatible dialect the
// write fails too.
func TestCopiesDeniedWhilePipeIsOpen(t *testing.T) {
	skipWithoutCMA(t)
	for role, want := range map[string]string{
		"read-after-EPERM":  "ErrForbidden true ErrCopy false",
		"read-after-ENOSYS": "ErrForbidden true ErrCopy false",
		"read-after-ENOMEM": "ErrForbidden false ErrCopy true",
	} {
		t.Run(role, func(t *testing.T) {
			inAllVariants(t, func(t *testing.T, m childSpec) {
				m.role = role
				kid, p := mustConnect(t, m)
				require.Regexp(t, "cpu:0 to cpu:0 +"+cma.Name+"\n", kid.plan())
				require.NoError(t, p.Write(t.Context(), &pipe.Message{Metadata: []byte("now")}))
				written := testwait.Start(func() error { return p.Write(t.Context(), largeTensor(make([]byte, hugeSize))) })
				line := kid.waitLine(t)
				require.Equal(t, resultPrefix+want+" ErrPeerLost false none false", line)
				err := testwait.Finish(t, written)
				if m.dialect == pipe.DialectNative {
					require.NoError(t, err)
					roundTrip(t, p, []byte("still open"))
					require.NoError(t, p.Close())
					return
				}
				require.Error(t, err)
			})
		})
	}
}

// TestPeerBecomesUndumpable checks that if the sender becomes undumpable while the pipe is open,
// Read over cma fails with ErrForbidden and the system's error, not with ErrPeerLost. In the native
// dialect the pipe stays open.
func TestPeerBecomesUndumpable(t *testing.T) {
	if !withoutRights(t) {
		return
	}
	r := denial{}
	r.restriction, r.role = "nothing", "become-undumpable"
	r.eachVariant(t, func(t *testing.T, r denial) {
		kid, p, err := r.open(t)
		require.NoError(t, err)
		require.Regexp(t, "cpu:0 to cpu:0 +"+cma.Name+"\n", kid.plan())
		small := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes([]byte("small"))}}}
		require.NoError(t, p.Write(t.Context(), small))
		in, err := p.Next(t.Context())
		require.NoError(t, err)
		err = in.Read(t.Context(), pipe.NewAllocation(in.Descriptor()))
		require.ErrorIs(t, err, pipe.ErrForbidden)
		require.NotErrorIs(t, err, pipe.ErrPeerLost)
		require.ErrorContains(t, err, "operation not permitted")
		if r.dialect == pipe.DialectNative {
			roundTrip(t, p, []byte("still open"))
			require.NoError(t, p.Close())
			return
		}
		_, err = p.Next(t.Context())
		require.Error(t, err) // the same error, or that the peer has closed its end because of it
	})
}
