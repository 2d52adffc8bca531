package samehost_test

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inAllVariants runs f as a subtest for each dialect and with the child listening and dialling. m
// describes a child that has no restriction and echoes messages.
func inAllVariants(t *testing.T, f func(t *testing.T, m childSpec)) {
	for _, c := range variants(0) {
		t.Run(string(c.dialect)+"/"+c.child(), func(t *testing.T) {
			f(t, childSpec{dialect: c.dialect, listens: c.listens, restriction: "nothing", role: "echo"})
		})
	}
}

// requireChannel requires that p uses the channel want between host memory, and that the peer
// echoes small and large tensors over it.
func requireChannel(t *testing.T, p *pipe.Pipe, want string) {
	t.Helper()
	got, _ := p.Plan().Channel(device.CPU(), device.CPU())
	require.Equal(t, want, got, p.Plan().String())
	for seed, size := range []int{100, 100_000, 3<<20 + 1} {
		roundTrip(t, p, bytes.Repeat([]byte{byte(seed + 1), 2, 3}, size)[:size])
	}
}

func roundTrip(t *testing.T, p *pipe.Pipe, data []byte) {
	t.Helper()
	require.NoError(t, p.Write(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data)}}}))
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), a))
	got, _ := a.Tensors[0].Contiguous()
	require.True(t, bytes.Equal(data, got))
}

// TestDirectCopy checks that two processes without restrictions copy tensors from each other's
// memory with the channel cma.
func TestDirectCopy(t *testing.T) {
	inAllVariants(t, func(t *testing.T, m childSpec) {
		kid, p := mustConnect(t, m)
		requireChannel(t, p, cma.Name)
		require.Regexp(t, "cpu:0 to cpu:0 +cma\n", kid.plan())
	})
}

// requireDenied requires that a pipe to the child of m uses the channel basic, because cma does not
// work for reason, and that the plans of both ends have that reason. If the child listens, it also
// requires that Dial with a policy that requires cma fails with the reason.
func requireDenied(t *testing.T, m childSpec, reason string) {
	t.Helper()
	kid, p := mustConnect(t, m)
	requireChannel(t, p, "basic")
	for _, plan := range []string{p.Plan().String(), kid.plan()} {
		require.Regexp(t, "cpu:0 to cpu:0 +basic\n", plan)
		require.Regexp(t, "not channel "+cma.Name+" .*"+reason, plan)
	}

	m.policy.Channels.Require = []string{cma.Name}
	if m.listens {
		_, _, err := connect(t, m)
		require.ErrorIs(t, err, pipe.ErrPolicy)
		require.Regexp(t, "channel "+cma.Name+": .*"+reason, err.Error())
	}
}

// TestNotDumpable checks that between processes without privileges, of which one is not dumpable, a
// pipe does not use cma, and the plans have the reason. Either the undumpable process finds out
// before it offers cma, or the probe fails.
func TestNotDumpable(t *testing.T) {
	if !withoutRights(t) {
		return
	}
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.restriction = "dumpable"
		requireDenied(t, m, "the process is not dumpable")
		m.restriction = "late-dumpable"
		requireDenied(t, m, "operation not permitted")
	})
}

// TestDeniedCall checks that if a seccomp filter denies process_vm_readv in one process, a pipe
// does not use cma, and the plans have the reason.
func TestDeniedCall(t *testing.T) {
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.restriction = "readv"
		requireDenied(t, m, "process_vm_readv does not work, even on the own process")
		m.restriction = "late-readv"
		requireDenied(t, m, "operation not permitted")
	})
}

// TestOtherUser checks that between processes of different users a pipe does not use cma, and the
// plans have the reason: the processes offer different device descriptors, or, if one of them
// changes its user later, the probe of cma fails.
func TestOtherUser(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.restriction = "late-user"
		requireDenied(t, m, "operation not permitted")
		m.restriction = "nothing"
		m.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		requireDenied(t, m, "does not go with our")
	})
}

// TestOtherNamespace checks that between processes in different pid namespaces, where a process id
// has different meanings, a pipe does not use cma, and the plans have the reason.
func TestOtherNamespace(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("only root can start a process in another pid namespace")
	}
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		requireDenied(t, m, "does not go with our")
	})
}

// TestSenderKilled checks that if a process is killed while its memory is being read by cma, the
// reader's pipe fails with ErrPeerLost.
func TestSenderKilled(t *testing.T) {
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.role = "source"
		dst := pipe.Allocation{Tensors: []device.Buffer{device.Bytes(make([]byte, hugeSize))}}
		for tensors := range 3 {
			kid, p := mustConnect(t, m)
			var err error
			for n := 0; err == nil; n++ {
				var in *pipe.Incoming
				if in, err = p.Next(t.Context()); err != nil {
					break
				}
				if n == tensors {
					go kid.kill()
				}
				err = in.Read(t.Context(), dst)
			}
			require.ErrorIs(t, err, pipe.ErrPeerLost)
			p.Abort(nil)
		}
	})
}

// TestReceiverKilled checks that if a process is killed while it reads the sender's memory by cma,
// Write of the sender returns ErrPeerLost.
func TestReceiverKilled(t *testing.T) {
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.role = "sink"
		for tensors := range 3 {
			kid, p := mustConnect(t, m)
			msg := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, hugeSize))}}}
			var err error
			for n := 0; err == nil; n++ {
				if n == tensors {
					go kid.kill()
				}
				err = p.Write(t.Context(), msg)
			}
			require.True(t, strings.Contains(err.Error(), "lost the peer"), "%v", err)
			require.ErrorIs(t, err, pipe.ErrPeerLost)
			p.Abort(nil)
		}
	})
}

// TestCancelledWhileBeingRead checks that after a cancelled write over cma has returned, the sender
// may overwrite its memory. The receiver, another process, then delivers either the whole old
// tensor or none, never the new bytes.
func TestCancelledWhileBeingRead(t *testing.T) {
	_, p := mustConnect(t, childSpec{dialect: pipe.DialectNative, restriction: "nothing", role: "echo"})
	src := make([]byte, hugeSize)
	for round := range race.Pick[byte](20, 8) {
		copy(src, bytes.Repeat([]byte{round}, hugeSize)) // copy is fast under the race detector
		ctx, cancel := context.WithCancel(t.Context())
		op := p.WriteAsync(ctx, &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(src)}}})
		go cancel()
		delivered := op.Wait(t.Context()) == nil
		clear(src[1:]) // the first byte remains as the expected value
		back := echoes(t, p)
		require.LessOrEqual(t, len(back), 1)
		require.True(t, !delivered || len(back) == 1, "a cancelled message may have arrived as well")
		for _, got := range back {
			require.Equal(t, hugeSize, bytes.Count(got, []byte{round}))
		}
	}
	roundTrip(t, p, src)
}

// echoes sends an empty message, reads all messages up to its echo, and returns the first tensor of
// each: the echoes of earlier messages that had not been read.
func echoes(t *testing.T, p *pipe.Pipe) (tensors [][]byte) {
	t.Helper()
	require.NoError(t, p.Write(t.Context(), &pipe.Message{})) // its echo is the last
	for {
		in, err := p.Next(t.Context())
		require.NoError(t, err)
		a := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(t.Context(), a))
		if len(a.Tensors) == 0 {
			return tensors
		}
		got, _ := a.Tensors[0].Contiguous()
		tensors = append(tensors, got)
	}
}
