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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// refusal is something that the system does not grant, and what follows.
type refusal struct {
	restricted
	transport, channel string // those that are used then
	refused            string // what is not
	why                string // as the plans have it
}

// eachWay runs f in both dialects, with the child at either end.
func (r refusal) eachWay(t *testing.T, f func(t *testing.T, r refusal)) {
	for _, c := range constellations(0) {
		t.Run(fmt.Sprintf("%s/%s/listens=%t", r.spoil, c.dialect, c.listens), func(t *testing.T) {
			r := r
			r.dialect, r.listens = c.dialect, c.listens
			f(t, r)
		})
	}
}

// prove checks that pipes open all the same, carry tensors as they are and say what
// was refused, at both ends; and that a policy makes an error of it.
func (r refusal) prove(t *testing.T) {
	r.eachWay(t, func(t *testing.T, r refusal) {
		kid, p, err := r.open(t)
		require.NoError(t, err)
		plan := kid.plan()
		for _, plan := range []string{p.Plan().String(), plan} {
			require.Regexp(t, "transport +"+r.transport+"\n", plan)
			require.Regexp(t, "cpu:0 to cpu:0 +"+r.channel+"\n", plan)
			require.Regexp(t, "not (transport|channel) "+r.refused+" .*("+r.why+")", plan)
		}
		data := pseudoRandom(9 << 18) // which is too much to travel within its message
		roundTrip(t, p, data)
		roundTrip(t, p, data[:8])
		require.NoError(t, p.Close())

		r.require = r.refused
		_, _, err = r.open(t)
		require.ErrorContains(t, err, pipe.ErrPolicy.Error())
		require.Regexp(t, "(transport|channel) "+r.refused+": .*("+r.why+")", err.Error())
		if r.listens {
			require.ErrorIs(t, err, pipe.ErrPolicy)
		}
	})
}

// pseudoRandom is bytes of which no two pieces are the same.
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

// without is a refusal of shared memory, after which direct copies are still made.
func without(spoil, why string) refusal {
	return refusal{
		restricted: restricted{meeting: meeting{spoil: spoil}},
		transport:  "uv", channel: cma.Name, refused: shm.Name, why: why,
	}
}

// Where shared memory is not to be had, TCP is used: it is refused before it is
// offered, or when it is made, at the end that makes it first, which tells the other
// one.
func TestSharedMemoryRefused(t *testing.T) {
	needDirectCopies(t)
	for _, r := range []refusal{
		without("fsize", `RLIMIT_FSIZE`),
		without("late-fsize", `RLIMIT_FSIZE`),
		without("memfd", `memfd_create: operation not permitted`),
		without("late-memfd", `memfd_create: operation not permitted`),
		without("nofile", `too many open files`),
		without("late-nofile", `too many open files`),
	} {
		r.prove(t)
	}
}

// Where the system cannot set pages aside for memory that is mapped, as Linux before
// 5.14, or does not let one of the two, memory is shared all the same: messages that
// have the rings of others grow arrive at both ends.
func TestMemoryThatCannotGrowIsShared(t *testing.T) {
	for _, spoil := range []string{"populate", "late-populate"} {
		r := refusal{restricted: restricted{meeting: meeting{spoil: spoil}}}
		r.eachWay(t, func(t *testing.T, r refusal) {
			_, p, err := r.open(t)
			require.NoError(t, err)
			require.Equal(t, shm.Name, p.Plan().Transport)
			data := pseudoRandom(900_000)
			for range 8 {
				roundTrip(t, p, data)
			}
			overfill(t, p, data)
			roundTrip(t, p, pseudoRandom(3<<20))
			require.NoError(t, p.Close())
		})
	}
}

// overfill has messages on their way until there is no room for more in either
// direction, and then takes them all in.
func overfill(t *testing.T, p *pipe.Pipe, data []byte) {
	t.Helper()
	const messages = 16
	var sent []*pipe.WriteOp
	for range messages {
		m := &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(data), TargetDevice: device.CPU()}}}
		sent = append(sent, p.WriteAsync(t.Context(), m))
	}
	patience.Asleep(t)
	for range messages {
		back, err := read(t.Context(), p)
		require.NoError(t, err)
		got, _ := back.Tensors[0].Buffer.Contiguous()
		require.True(t, bytes.Equal(data, got))
	}
	for _, op := range sent {
		require.NoError(t, op.Wait(t.Context()))
	}
}

func needDirectCopies(t *testing.T) {
	t.Helper()
	if err := cma.New(cma.Options{}).Viable(); err != nil {
		t.Skip("direct copies do not work here: ", err)
	}
}

// Users do not share memory with each other, nor read each other's.
func TestOtherUserSharesNothing(t *testing.T) {
	needRoot(t)
	r := without("nothing", "the peer runs as another user")
	r.channel = basic.Name
	r.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r.prove(t)
	r.transport, r.refused, r.why = "uv", cma.Name, "does not go with our"
	r.prove(t)
}

// In another pid namespace memory is shared, and not read.
func TestOtherPIDNamespaceShares(t *testing.T) {
	needRoot(t)
	r := refusal{transport: shm.Name, channel: basic.Name, refused: cma.Name, why: "does not go with our"}
	r.spoil = "nothing"
	r.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	r.prove(t)
}

// A process that is not dumpable, or may not make the call, shares memory, too.
func TestDirectCopiesRefusedOverSharedMemory(t *testing.T) {
	needDirectCopies(t)
	r := refusal{transport: shm.Name, channel: basic.Name, refused: cma.Name}
	for spoil, why := range map[string]string{
		"readv":      "process_vm_readv does not work, even on the own process",
		"late-readv": "operation not permitted",
	} {
		r.spoil, r.why = spoil, why
		r.prove(t)
	}
}

// As does one on a machine whose Yama keeps processes apart, which is simulated.
func TestYamaOverSharedMemory(t *testing.T) {
	needDirectCopies(t)
	r := refusal{transport: shm.Name, channel: basic.Name, refused: cma.Name}
	for _, scope := range []string{"1", "2", "3"} {
		r.root = machineOfScope(t, scope)
		r.spoil, r.why = "nothing", "ptrace_scope is "+scope
		r.prove(t)
	}
}

// machineOfScope is the root of a machine with Yama.
func machineOfScope(t *testing.T, scope string) string {
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

// As does one that users without rights may not read.
func TestNotDumpableOverSharedMemory(t *testing.T) {
	if !withoutRights(t) {
		return
	}
	r := refusal{transport: shm.Name, channel: basic.Name, refused: cma.Name}
	for spoil, why := range map[string]string{
		"dumpable":      "the process is not dumpable",
		"late-dumpable": "operation not permitted",
	} {
		r.spoil, r.why = spoil, why
		r.prove(t)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user, or in other namespaces")
	}
}

// In another network namespace the names of sockets are others. The two are joined
// by a cable.
func TestOtherNetworkNamespace(t *testing.T) {
	needRoot(t)
	needDirectCopies(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no cable can be laid here: ", err)
	}
	r := without("cable", "the peer is in another domain")
	r.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	r.cable = true
	r.prove(t)
}

// The ends of the cable, and what they are called there.
const (
	nearHost, farHost = "198.18.77.1", "198.18.77.2"
	nearName, farName = "tpnear", "tpfar"
)

// layCable joins a child's network to this one's, and lets the child go on. There is
// one cable at a time: with two the address of their far ends would be either's.
func layCable(t *testing.T, kid *child) {
	t.Helper()
	takeUp := func() { _ = exec.Command("ip", "link", "del", nearName).Run() } // it may have gone with a child
	takeUp()
	for _, line := range []string{
		fmt.Sprintf("link add %s type veth peer name %s netns %d", nearName, farName, kid.cmd.Process.Pid),
		"addr add " + nearHost + "/30 dev " + nearName,
		"link set " + nearName + " up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("no cable can be laid here: ip %s: %v, %s", line, err, bytes.TrimSpace(out))
		}
	}
	t.Cleanup(takeUp)
	_, err := kid.in.Write([]byte("\n"))
	require.NoError(t, err)
}
