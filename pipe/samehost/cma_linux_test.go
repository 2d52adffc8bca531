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
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inBoth runs f for each dialect and each end that may listen.
func inBoth(t *testing.T, f func(t *testing.T, m meeting)) {
	for _, c := range constellations(0) {
		t.Run(c.dialect+"/"+c.child(), func(t *testing.T) {
			f(t, meeting{dialect: c.dialect, listens: c.listens, spoil: "nothing", role: "echo"})
		})
	}
}

// requireChannel checks which channel a pipe uses, and that it works.
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

// Two processes copy out of each other's memory.
func TestDirectCopy(t *testing.T) {
	inBoth(t, func(t *testing.T, m meeting) {
		kid, p := mustMeet(t, m)
		requireChannel(t, p, cma.Name)
		require.Regexp(t, "cpu:0 to cpu:0 +cma\n", kid.plan())
	})
}

// requireRefused checks that the next channel is used, that the plans of both ends
// say why, and that a policy makes an error of it.
func requireRefused(t *testing.T, m meeting, why string) {
	t.Helper()
	kid, p := mustMeet(t, m)
	requireChannel(t, p, "basic")
	for _, plan := range []string{p.Plan().String(), kid.plan()} {
		require.Regexp(t, "cpu:0 to cpu:0 +basic\n", plan)
		require.Regexp(t, "not channel "+cma.Name+" .*"+why, plan)
	}

	m.policy.Channels.Require = []string{cma.Name}
	if m.listens {
		_, _, err := meet(t, m)
		require.ErrorIs(t, err, pipe.ErrPolicy)
		require.Regexp(t, "channel "+cma.Name+": .*"+why, err.Error())
	}
}

// A process that is not dumpable is not read, by users without rights. It says so
// itself, or is found out, whichever end it is.
func TestNotDumpable(t *testing.T) {
	if !withoutRights(t) {
		return
	}
	inBoth(t, func(t *testing.T, m meeting) {
		m.spoil = "dumpable"
		requireRefused(t, m, "the process is not dumpable")
		m.spoil = "late-dumpable"
		requireRefused(t, m, "operation not permitted")
	})
}

// A filter forbids the system call.
func TestFilteredCall(t *testing.T) {
	inBoth(t, func(t *testing.T, m meeting) {
		m.spoil = "readv"
		requireRefused(t, m, "process_vm_readv does not work, even on the own process")
		m.spoil = "late-readv"
		requireRefused(t, m, "operation not permitted")
	})
}

// Processes of different users do not try: their descriptors differ. Where those do
// not tell, the system does.
func TestOtherUser(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	inBoth(t, func(t *testing.T, m meeting) {
		m.spoil = "late-user"
		requireRefused(t, m, "operation not permitted")
		m.spoil = "nothing"
		m.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		requireRefused(t, m, "does not go with our")
	})
}

// In another pid namespace the same number is another process.
func TestOtherNamespace(t *testing.T) {
	if syscall.Geteuid() != 0 {
		t.Skip("only root can start a process in another pid namespace")
	}
	inBoth(t, func(t *testing.T, m meeting) {
		m.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		requireRefused(t, m, "does not go with our")
	})
}

// The process that is being read is killed, time after time.
func TestSenderKilled(t *testing.T) {
	inBoth(t, func(t *testing.T, m meeting) {
		m.role = "source"
		dst := pipe.Allocation{Tensors: []device.Buffer{device.Bytes(make([]byte, much))}}
		for tensors := range 3 {
			kid, p := mustMeet(t, m)
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

// The process that reads is killed: what it was reading is free again.
func TestReceiverKilled(t *testing.T) {
	inBoth(t, func(t *testing.T, m meeting) {
		m.role = "sink"
		for tensors := range 3 {
			kid, p := mustMeet(t, m)
			msg := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(make([]byte, much))}}}
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

// A sender that gives up has its memory back at once, and a receiver in another
// process does not take what it finds there for the tensor.
func TestGivenUpWhileBeingRead(t *testing.T) {
	_, p := mustMeet(t, meeting{dialect: pipe.DialectNative, spoil: "nothing", role: "echo"})
	src := make([]byte, much)
	for round := range race.Pick[byte](20, 8) {
		copy(src, bytes.Repeat([]byte{round}, much)) // which the race detector does not see byte by byte
		ctx, cancel := context.WithCancel(t.Context())
		op := p.WriteAsync(ctx, &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(src)}}})
		go cancel()
		delivered := op.Wait(t.Context()) == nil
		clear(src[1:]) // the first byte says what all were
		back := echoes(t, p)
		require.LessOrEqual(t, len(back), 1)
		require.True(t, !delivered || len(back) == 1, "what was given up may have arrived as well")
		for _, got := range back {
			require.Equal(t, much, bytes.Count(got, []byte{round}))
		}
	}
	roundTrip(t, p, src)
}

// echoes are the tensors that still come back of what was sent so far.
func echoes(t *testing.T, p *pipe.Pipe) (tensors [][]byte) {
	t.Helper()
	require.NoError(t, p.Write(t.Context(), &pipe.Message{})) // which comes back last
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
