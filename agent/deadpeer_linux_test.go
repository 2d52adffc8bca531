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

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// userTimeouts are those of the connected TCP sockets of this process, in milliseconds.
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

// What a worker opens and accepts by default has the bound.
func TestDefaultSilence(t *testing.T) {
	group := insiders(t, 2, func(_ int, c *Config) { c.Listen = []string{"uv://127.0.0.1:0"} })
	_, err := group[0].peers.find("worker1").connect(t.Context())
	require.NoError(t, err)
	bounded := 0
	for _, ms := range userTimeouts(t) {
		if ms == int(silence.Milliseconds()) {
			bounded++
		}
	}
	require.GreaterOrEqual(t, bounded, 2, "both ends are here")
}

// requireNetns is set where namespaces are known to work: a skip would hide that nobody
// pulled a cable.
const requireNetns = "TENSORPIPE_REQUIRE_NETNS"

// islander is set for the process at the other end of the cable: its address and the store.
const islander = "TENSORPIPE_ISLANDER"

var islandEcho = NewFunc[int, int]("test.echo")

// joinIsland joins a group of two over the cable. What is on its way may stay so for a
// second only.
func joinIsland(ctx context.Context, rank int, addr, rendezvous string) (*Agent, error) {
	return Join(ctx, Config{
		Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: 2, Rendezvous: rendezvous,
		StoreOptions: store.Options{Join: rank > 0}, Insecure: true, Listen: []string{"uv://" + addr + ":0"},
		NewContext: func(o pipe.Options) (*pipe.Context, error) { return newContext(o, time.Second) },
		Logger:     slog.New(slog.DiscardHandler),
		Funcs:      Funcs{islandEcho.Serve(func(_ context.Context, n int) (int, error) { return n, nil })},
	})
}

// TestIslander is the process at the other end of the cable, until its input ends.
func TestIslander(t *testing.T) {
	told := os.Getenv(islander)
	if told == "" {
		t.Skip("the other process of TestPulledCable")
	}
	addr, rendezvous, _ := strings.Cut(told, " ")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a, err := joinIsland(ctx, 1, addr, rendezvous)
	require.NoError(t, err)
	fmt.Println("joined")
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	require.NoError(t, a.Close())
}

// cable is that to a network namespace.
type cable struct {
	namespace, near, far, here, there string
}

func ip(command string) ([]byte, error) {
	return exec.Command("ip", strings.Fields(command)...).CombinedOutput()
}

// layCable needs root and iproute2. The addresses are from the range for tests between
// networks. Neighbours are entered by hand, so that nothing but the connection itself
// notices a pulled cable.
func layCable(t *testing.T) cable {
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
		_, _ = ip("link del " + c.near) // or it goes when the kernel finds the time
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
		inside + "link set lo up", // which uv tries
	} {
		out, err := ip(command)
		require.NoError(t, err, "ip %s: %s", command, out)
	}
	return c
}

// put pulls the cable at the far end, where only who waits for an answer notices, or plugs
// it in: "down" or "up".
func (c cable) put(t *testing.T, how string) {
	t.Helper()
	out, err := ip("-n " + c.namespace + " link set " + c.far + " " + how)
	require.NoError(t, err, string(out))
}

// inhabit starts TestIslander, and returns when it has joined.
func (c cable) inhabit(t *testing.T, rendezvous string) <-chan string {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", c.namespace, os.Args[0], "-test.run=^TestIslander$")
	cmd.Env = append(os.Environ(), islander+"="+c.there+" "+rendezvous)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	joined := patience.Start(func() string {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		return line
	})
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return joined
}

// The machine of a worker vanishes from the network while a call without a limit is on its
// way: the call fails, and so do not those that are made when it is back.
func TestPulledCable(t *testing.T) {
	c := layCable(t)
	rendezvous := "tcp://" + c.here + ":" + freeport.On(t, c.here)
	joined := c.inhabit(t, rendezvous)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := joinIsland(ctx, 0, c.here, rendezvous)
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	require.Equal(t, "joined\n", patience.Finish(t, joined))
	n, err := islandEcho.Call(ctx, a, "worker1", 1, Timeout(0))
	require.NoError(t, err)
	require.Equal(t, 1, n)

	c.put(t, "down")
	_, err = islandEcho.Call(ctx, a, "worker1", 2, Timeout(0))
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NoError(t, ctx.Err())

	c.put(t, "up")
	n, err = islandEcho.Call(ctx, a, "worker1", 3, Timeout(0))
	require.NoError(t, err)
	require.Equal(t, 3, n)
}
