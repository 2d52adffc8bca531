package samehost_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// denial is something that the system denies, and its effect.
type denial struct {
	restricted
	transport, channel string // that are used instead
	denied             string // the transport or channel that is not used
	reason             string // pattern of the reason in the plans
}

// eachVariant runs f as a subtest in both dialects, with the child listening and dialling. f gets a
// copy of r for that variant.
func (r denial) eachVariant(t *testing.T, f func(t *testing.T, r denial)) {
	for _, c := range variants(0) {
		t.Run(fmt.Sprintf("%s/%s/listens=%t", r.restriction, c.dialect, c.listens), func(t *testing.T) {
			r := r
			r.dialect, r.listens = c.dialect, c.listens
			f(t, r)
		})
	}
}

// check requires, in each variant, that a pipe to the restricted child opens with the transport and
// channel of r and carries tensors, that the plans of both ends have the reason why r.denied is not
// used, and that opening fails with that reason if the policy requires r.denied.
func (r denial) check(t *testing.T) {
	r.eachVariant(t, func(t *testing.T, r denial) {
		kid, p, err := r.open(t)
		require.NoError(t, err)
		plan := kid.plan()
		for _, plan := range []string{p.Plan().String(), plan} {
			require.Regexp(t, "transport +"+r.transport+"\n", plan)
			require.Regexp(t, "cpu:0 to cpu:0 +"+r.channel+"\n", plan)
			require.Regexp(t, "not (transport|channel) "+r.denied+" .*("+r.reason+")", plan)
		}
		data := pseudoRandom(9 << 18) // too large to be inline
		roundTrip(t, p, data)
		roundTrip(t, p, data[:8])
		require.NoError(t, p.Close())

		r.require = r.denied
		_, _, err = r.open(t)
		require.ErrorContains(t, err, pipe.ErrPolicy.Error())
		require.Regexp(t, "(transport|channel) "+r.denied+": .*("+r.reason+")", err.Error())
		if r.listens {
			require.ErrorIs(t, err, pipe.ErrPolicy)
		}
	})
}

// pseudoRandom returns n new bytes of a fixed pseudorandom sequence, which has no short period.
func pseudoRandom(n int) []byte {
	out, x := make([]byte, n), uint64(88172645463325252)
	for i := range out {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		out[i] = byte(x)
	}
	return out
}

// withoutSHM returns a denial of shared memory by this restriction: the pipe is expected to use TCP
// and the channel cma, and the plans to match the regular expression reason.
func withoutSHM(restriction, reason string) denial {
	return denial{
		restricted: restricted{childSpec: childSpec{restriction: restriction}},
		transport:  "uv", channel: cma.Name, denied: shm.Name, reason: reason,
	}
}

// TestSharedMemoryDenied checks that if a process cannot create shared memory, a pipe uses TCP, and
// the plans of both ends have the reason, no matter whether the process finds out before it offers
// shared memory or only when it creates it.
func TestSharedMemoryDenied(t *testing.T) {
	skipWithoutCMA(t)
	for _, r := range []denial{
		withoutSHM("fsize", `RLIMIT_FSIZE`),
		withoutSHM("late-fsize", `RLIMIT_FSIZE`),
		withoutSHM("memfd", `memfd_create: operation not permitted`),
		withoutSHM("late-memfd", `memfd_create: operation not permitted`),
		withoutSHM("nofile", `too many open files`),
		withoutSHM("late-nofile", `too many open files`),
	} {
		r.check(t)
	}
}

// TestMemoryThatCannotGrowIsShared checks that a pipe uses shared memory even if its rings cannot
// grow, because one process cannot reserve pages of mapped memory, as on Linux before 5.14.
// Messages for which rings would grow still arrive.
func TestMemoryThatCannotGrowIsShared(t *testing.T) {
	for _, restriction := range []string{"populate", "late-populate"} {
		r := denial{restricted: restricted{childSpec: childSpec{restriction: restriction}}}
		r.eachVariant(t, func(t *testing.T, r denial) {
			_, p, err := r.open(t)
			require.NoError(t, err)
			require.Equal(t, shm.Name, p.Plan().Transport)
			data := pseudoRandom(900_000)
			for range 8 {
				roundTrip(t, p, data)
			}
			fillRings(t, p, data)
			roundTrip(t, p, pseudoRandom(3<<20))
			require.NoError(t, p.Close())
		})
	}
}

// fillRings starts to write 16 messages with a tensor of data, waits until all processes are idle
// because the buffers of both directions are full, and then requires that all echoes arrive and all
// writes succeed.
func fillRings(t *testing.T, p *pipe.Pipe, data []byte) {
	t.Helper()
	const messages = 16
	var sent []*pipe.WriteOp
	for range messages {
		m := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data), TargetDevice: device.CPU()}}}
		sent = append(sent, p.WriteAsync(t.Context(), m))
	}
	testwait.WaitIdle(t)
	for range messages {
		back, err := readMessage(t.Context(), p)
		require.NoError(t, err)
		got, _ := back.Tensors[0].Buffer.Contiguous()
		require.True(t, bytes.Equal(data, got))
	}
	for _, op := range sent {
		require.NoError(t, op.Wait(t.Context()))
	}
}

func skipWithoutCMA(t *testing.T) {
	t.Helper()
	if err := cma.New(cma.Options{}).Viable(); err != nil {
		t.Skip("direct copies do not work here: ", err)
	}
}

// TestOtherUserSharesNothing checks that between processes of different users a pipe uses neither
// shared memory nor cma, and the plans have the reasons.
func TestOtherUserSharesNothing(t *testing.T) {
	skipWithoutRoot(t)
	r := withoutSHM("nothing", "the peer runs as another user")
	r.channel = basic.Name
	r.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r.check(t)
	r.transport, r.denied, r.reason = "uv", cma.Name, "does not go with our"
	r.check(t)
}

// TestOtherPIDNamespaceShares checks that between processes in different pid namespaces a pipe uses
// shared memory and does not use cma, and the plans have the reason.
func TestOtherPIDNamespaceShares(t *testing.T) {
	skipWithoutRoot(t)
	r := denial{transport: shm.Name, channel: basic.Name, denied: cma.Name, reason: "does not go with our"}
	r.restriction = "nothing"
	r.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	r.check(t)
}

// TestDirectCopiesDeniedOverSharedMemory checks that if a process may not call process_vm_readv, a
// pipe uses shared memory and does not use cma, and the plans have the reason.
func TestDirectCopiesDeniedOverSharedMemory(t *testing.T) {
	skipWithoutCMA(t)
	r := denial{transport: shm.Name, channel: basic.Name, denied: cma.Name}
	for restriction, reason := range map[string]string{
		"readv":      "process_vm_readv does not work, even on the own process",
		"late-readv": "operation not permitted",
	} {
		r.restriction, r.reason = restriction, reason
		r.check(t)
	}
}

// TestYamaOverSharedMemory checks that if the security module Yama, here simulated, restricts
// ptrace, a pipe uses shared memory and does not use cma, and the plans have the reason.
func TestYamaOverSharedMemory(t *testing.T) {
	skipWithoutCMA(t)
	r := denial{transport: shm.Name, channel: basic.Name, denied: cma.Name}
	for _, scope := range []string{"1", "2", "3"} {
		r.root = yamaRoot(t, scope)
		r.restriction, r.reason = "nothing", "ptrace_scope is "+scope
		r.check(t)
	}
}

// yamaRoot creates a temporary directory and returns its path. It has the files under sys and proc
// that a machine has where the security module Yama restricts ptrace to this scope.
func yamaRoot(t *testing.T, scope string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/kernel/security/lsm":           "capability,yama",
		"proc/sys/kernel/yama/ptrace_scope": scope + "\n",
	} {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

// TestNotDumpableOverSharedMemory checks that between processes without privileges, of which one is
// not dumpable, a pipe uses shared memory and does not use cma, and the plans have the reason.
func TestNotDumpableOverSharedMemory(t *testing.T) {
	if !withoutRights(t) {
		return
	}
	r := denial{transport: shm.Name, channel: basic.Name, denied: cma.Name}
	for restriction, reason := range map[string]string{
		"dumpable":      "the process is not dumpable",
		"late-dumpable": "operation not permitted",
	} {
		r.restriction, r.reason = restriction, reason
		r.check(t)
	}
}

func skipWithoutRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user, or in other namespaces")
	}
}

// TestOtherNetworkNamespace checks that between processes in different network namespaces,
// connected by a veth pair, a pipe uses TCP and not shared memory, because each namespace has its
// own names of Unix sockets. The plans have the reason.
func TestOtherNetworkNamespace(t *testing.T) {
	skipWithoutRoot(t)
	skipWithoutCMA(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no veth pair can be created here: ", err)
	}
	r := withoutSHM("veth", "the peer is in another domain")
	r.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	r.vethPair = true
	r.check(t)
}

// The addresses and names of the two ends of the veth pair.
const (
	nearHost, farHost = "198.18.77.1", "198.18.77.2"
	nearName, farName = "tpnear", "tpfar"
)

// createVeth connects the network namespace of the child kid to this one by a veth pair, and then
// resumes the child, which waits for that. It replaces an earlier pair, because all pairs have the
// same addresses. It skips the test if the pair cannot be created.
func createVeth(t *testing.T, kid *child) {
	t.Helper()
	removeVeth := func() { _ = exec.Command("ip", "link", "del", nearName).Run() } // fails if it was removed with a child's namespace
	removeVeth()
	for _, line := range []string{
		fmt.Sprintf("link add %s type veth peer name %s netns %d", nearName, farName, kid.cmd.Process.Pid),
		"addr add " + nearHost + "/30 dev " + nearName,
		"link set " + nearName + " up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("no veth pair can be created here: ip %s: %v, %s", line, err, bytes.TrimSpace(out))
		}
	}
	t.Cleanup(removeVeth)
	_, err := kid.in.Write([]byte("\n"))
	require.NoError(t, err)
}
