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

// inAllVariants runs f for each dialect and each role of the child.
func inAllVariants(t *testing.T, f func(t *testing.T, m childSpec)) {
	for _, c := range variants(0) {
		t.Run(string(c.dialect)+"/"+c.child(), func(t *testing.T) {
			f(t, childSpec{dialect: c.dialect, listens: c.listens, restriction: "nothing", role: "echo"})
		})
	}
}

// requireChannel checks which channel a pipe uses, and exchanges tensors over it.
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

// Two processes copy from each other's memory.
func TestDirectCopy(t *testing.T) {
	inAllVariants(t, func(t *testing.T, m childSpec) {
		kid, p := mustConnect(t, m)
		requireChannel(t, p, cma.Name)
		require.Regexp(t, "cpu:0 to cpu:0 +cma\n", kid.plan())
	})
}

// requireDenied checks that the next channel is used, that the plans of both ends give the reason,
// and that a policy which requires cma fails with it.
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

// The memory of an undumpable process cannot be read by unprivileged users. Either the process
// finds this out before it offers cma, or the probe does.
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

// A seccomp filter denies the system call.
func TestDeniedCall(t *testing.T) {
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.restriction = "readv"
		requireDenied(t, m, "process_vm_readv does not work, even on the own process")
		m.restriction = "late-readv"
		requireDenied(t, m, "operation not permitted")
	})
}

// Processes of different users have different descriptors. Where these are equal the probe fails.
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

// In another pid namespace the same id denotes another process.
func TestOtherNamespace(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("only root can start a process in another pid namespace")
	}
	inAllVariants(t, func(t *testing.T, m childSpec) {
		m.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		requireDenied(t, m, "does not go with our")
	})
}

// The process whose memory is being read is killed.
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

// The process that reads is killed. The sender's memory is released.
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

// A sender that cancels may reuse its memory at once. A receiver in another process never delivers
// the new contents as the tensor.
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

// echoes returns the remaining echoes of earlier messages.
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
