package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// userTimeouts returns TCP_USER_TIMEOUT of the connected TCP sockets of this process, in ms.
func userTimeouts(t *testing.T) (all []int) {
	t.Helper()
	const tcpUserTimeout = 0x12
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		if _, err := syscall.Getpeername(fd); err != nil {
			continue
		}
		if ms, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, tcpUserTimeout); err == nil {
			all = append(all, ms)
		}
	}
	return all
}

// By default both ends of a TCP pipe have the timeout.
func TestDefaultUserTimeout(t *testing.T) {
	group := joinInternal(t, 2, func(_ int, c *Config) { c.Listen = []string{"uv://127.0.0.1:0"} })
	_, err := group[0].peers.find("worker1").connect(t.Context())
	require.NoError(t, err)
	bounded := 0
	for _, ms := range userTimeouts(t) {
		if ms == int(ackTimeout.Milliseconds()) {
			bounded++
		}
	}
	require.GreaterOrEqual(t, bounded, 2, "both ends are here")
}

// requireNetns is set where network namespaces are known to work, so that the test is not
// skipped there.
const requireNetns = "TENSORPIPE_REQUIRE_NETNS"

// peerEnv is set in the process in the other namespace: its address and the URL of the store.
const peerEnv = "TENSORPIPE_ISLANDER"

var cableEcho = NewFunc[int, int]("test.echo")

// joinOverCable joins a group of two over the cable, with a timeout of a second for
// unacknowledged bytes.
func joinOverCable(ctx context.Context, rank int, addr, rendezvous string) (*Agent, error) {
	return Join(ctx, Config{
		Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: 2, Rendezvous: rendezvous,
		StoreOptions: store.Options{Join: rank > 0}, Insecure: true, Listen: []string{"uv://" + addr + ":0"},
		NewContext: func(o pipe.Options) (*pipe.Context, error) {
			return newContext(tensorpipe.DefaultProfile(), o, time.Second)
		},
		Logger: slog.New(slog.DiscardHandler),
		Funcs:  Funcs{cableEcho.Serve(func(_ context.Context, n int) (int, error) { return n, nil })},
	})
}

// TestPulledCablePeer runs in the process at the other end of the cable, until its input ends.
func TestPulledCablePeer(t *testing.T) {
	told := os.Getenv(peerEnv)
	if told == "" {
		t.Skip("the other process of TestPulledCable")
	}
	addr, rendezvous, _ := strings.Cut(told, " ")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, err := joinOverCable(ctx, 1, addr, rendezvous)
	require.NoError(t, err)
	fmt.Println("joined")
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	require.NoError(t, a.Close())
}

// cable is a veth pair to a network namespace.
type cable struct {
	namespace, near, far, here, there string
}

func ip(command string) ([]byte, error) {
	return exec.Command("ip", strings.Fields(command)...).CombinedOutput()
}

// newCable needs root and iproute2. The addresses are from the range for network benchmarks.
// Neighbours are entered by hand, so that only the connection itself notices a pulled cable.
func newCable(t *testing.T) cable {
	t.Helper()
	skip := func(format string, args ...any) {
		if os.Getenv(requireNetns) != "" {
			t.Fatalf(requireNetns+" is set, but: "+format, args...)
		}
		t.Skipf(format, args...)
	}
	if testing.Short() {
		skip("waits some seconds for timers of the kernel")
	}
	if os.Geteuid() != 0 {
		skip("network namespaces need root")
	}
	pid := os.Getpid()
	subnet := fmt.Sprintf("198.%d.%d.", 18+pid>>14&1, pid>>6&255)
	c := cable{
		fmt.Sprint("tpagent", pid), fmt.Sprint("tpan", pid), fmt.Sprint("tpaf", pid),
		subnet + fmt.Sprint(pid&63*4+1), subnet + fmt.Sprint(pid&63*4+2),
	}
	if out, err := ip("netns add " + c.namespace); err != nil {
		skip("no network namespaces here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		_, _ = ip("netns del " + c.namespace)
		_, _ = ip("link del " + c.near) // the kernel may have removed it with the namespace
	})
	inside := "-n " + c.namespace + " "
	for _, command := range []string{
		"link add " + c.near + " address 02:00:00:00:78:01 type veth peer name " + c.far +
			" address 02:00:00:00:78:02 netns " + c.namespace,
		"addr add " + c.here + "/30 dev " + c.near,
		"link set " + c.near + " up",
		"neigh replace " + c.there + " lladdr 02:00:00:00:78:02 nud permanent dev " + c.near,
		inside + "addr add " + c.there + "/30 dev " + c.far,
		inside + "link set " + c.far + " up",
		inside + "link set lo up", // uv tries it
	} {
		out, err := ip(command)
		require.NoError(t, err, "ip %s: %s", command, out)
	}
	return c
}

// put sets the far end "down" or "up". Only a sender that waits for an acknowledgement notices.
func (c cable) put(t *testing.T, how string) {
	t.Helper()
	out, err := ip("-n " + c.namespace + " link set " + c.far + " " + how)
	require.NoError(t, err, string(out))
}

// startPeer starts TestPulledCablePeer, and returns a channel with its first line: "joined".
func (c cable) startPeer(t *testing.T, rendezvous string) <-chan string {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", c.namespace, os.Args[0], "-test.run=^TestPulledCablePeer$")
	cmd.Env = append(os.Environ(), peerEnv+"="+c.there+" "+rendezvous)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	joined := testwait.Start(func() string {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		return line
	})
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return joined
}

// A worker's machine disappears from the network during a call without a timeout: the call fails.
// Calls succeed again once the machine is back.
func TestPulledCable(t *testing.T) {
	c := newCable(t)
	rendezvous := "tcp://" + c.here + ":" + freeport.Port(t, c.here)
	joined := c.startPeer(t, rendezvous)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := joinOverCable(ctx, 0, c.here, rendezvous)
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	require.Equal(t, "joined\n", testwait.Finish(t, joined))
	n, err := cableEcho.Call(ctx, a, "worker1", 1, WithTimeout(0))
	require.NoError(t, err)
	require.Equal(t, 1, n)

	c.put(t, "down")
	_, err = cableEcho.Call(ctx, a, "worker1", 2, WithTimeout(0))
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NoError(t, ctx.Err())

	c.put(t, "up")
	n, err = cableEcho.Call(ctx, a, "worker1", 3, WithTimeout(0))
	require.NoError(t, err)
	require.Equal(t, 3, n)
}
