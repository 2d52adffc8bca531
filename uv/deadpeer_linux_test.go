package uv_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// cable returns the addresses of the two ends of a virtual cable. They depend on the id of this
// process, and come from the range that is reserved for tests between networks.
func cable() (here, there string) {
	pid := os.Getpid()
	subnet := fmt.Sprintf("198.%d.%d.", 18+pid>>14&1, pid>>6&255)
	host := pid & 63 * 4
	return subnet + strconv.Itoa(host+1), subnet + strconv.Itoa(host+2)
}

// testNamespace is a network namespace with a process in it, at the other end of a virtual cable
// that can be cut.
type testNamespace struct {
	namespace string
	addr      string // of the listener there
}

// requireVar is the environment variable that is set where namespaces are known to work, so that
// the test fails and is not skipped.
const requireVar = "TENSORPIPE_REQUIRE_NETNS"

func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv(requireVar) != "" {
		t.Fatalf(requireVar+" is set, but: "+format, args...)
	}
	t.Skipf(format, args...)
}

// newTestNamespace creates a network namespace, a virtual cable to it, and a process in it that
// answers frames. The cleanup of the test removes all. It needs root and iproute2, and skips the
// test without them. The addresses of neighbours are fixed, so that the kernel reports no lost
// neighbour when the cable is cut.
func newTestNamespace(t *testing.T) *testNamespace {
	t.Helper()
	if testing.Short() {
		skip(t, "waits some seconds for timers of the kernel")
	}
	if os.Geteuid() != 0 {
		skip(t, "network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		skip(t, "network namespaces need iproute2: %v", err)
	}
	i := &testNamespace{namespace: fmt.Sprintf("uvtest%d", os.Getpid())}
	near, far := fmt.Sprintf("uvn%d", os.Getpid()), fmt.Sprintf("uvf%d", os.Getpid())
	if out, err := ip("netns add " + i.namespace); err != nil {
		skip(t, "no network namespaces here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		ip("netns del " + i.namespace)
		ip("link del " + near) // or the kernel deletes it later
	})
	hereIP, thereIP := cable()
	inside := "-n " + i.namespace + " "
	for _, command := range []string{
		"link add " + near + " address 02:00:00:00:77:01 type veth peer name " + far +
			" address 02:00:00:00:77:02 netns " + i.namespace,
		"addr add " + hereIP + "/30 dev " + near,
		"link set " + near + " up",
		"neigh replace " + thereIP + " lladdr 02:00:00:00:77:02 nud permanent dev " + near,
		inside + "addr add " + thereIP + "/30 dev " + far,
		inside + "link set " + far + " up",
		inside + "neigh replace " + hereIP + " lladdr 02:00:00:00:77:01 nud permanent dev " + far,
	} {
		out, err := ip(command)
		require.NoError(t, err, "ip %s: %s", command, out)
	}
	i.addr = startProcess(t, i.namespace, thereIP)
	return i
}

// cutCable disables the virtual cable at the end in the namespace. At this end nothing changes,
// except that no packet is answered.
func (i *testNamespace) cutCable(t *testing.T) {
	t.Helper()
	out, err := ip(fmt.Sprintf("-n %s link set uvf%d down", i.namespace, os.Getpid()))
	require.NoError(t, err, string(out))
}

func ip(command string) ([]byte, error) {
	return exec.Command("ip", strings.Fields(command)...).CombinedOutput()
}

// startProcess starts TestNamespaceProcess as a process in the namespace, listening on ip, and
// returns the address of its listener. The cleanup of the test ends the process.
func startProcess(t *testing.T, namespace, ip string) string {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", namespace, os.Args[0], "-test.run=^TestNamespaceProcess$")
	cmd.Env = append(os.Environ(), "UV_NAMESPACE_ADDR="+ip)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(addr)
}

// TestNamespaceProcess is no test: it is the process that startProcess starts in the namespace. It
// accepts one connection after the other and answers one frame on each, until its standard input
// ends. It is skipped in any other process.
func TestNamespaceProcess(t *testing.T) {
	addr := os.Getenv("UV_NAMESPACE_ADDR")
	if addr == "" {
		t.Skip("the other process of TestDeadPeer")
	}
	l := listen(t, uv.New(), addr)
	fmt.Println(l.Addr())
	go func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			defer c.Close()
			if n, err := c.NextFrame(); err == nil {
				p := make([]byte, n)
				c.ReadBody(p)
				c.WriteFrames(transport.Frame{p})
			}
		}
	}()
	io.Copy(io.Discard, os.Stdin)
	l.Close()
}

// dialNamespace connects to the process in the namespace with a transport with the options opts,
// exchanges a frame, and returns the connection. It is closed when the test ends.
func (i *testNamespace) dialNamespace(t *testing.T, opts ...uv.Option) transport.Conn {
	t.Helper()
	c, err := uv.New(opts...).Dial(t.Context(), i.addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("alive?")}))
	n, err := c.NextFrame()
	require.NoError(t, err)
	require.NoError(t, c.ReadBody(make([]byte, n)))
	return c
}

// TestDeadPeer cuts the network to a running process, so that neither a FIN nor a reset arrives. It
// checks that NextFrame returns ETIMEDOUT on an idle connection with WithKeepAlive and on one with
// unacknowledged bytes and WithUserTimeout, and that a Dial returns when its context is cancelled.
func TestDeadPeer(t *testing.T) {
	i := newTestNamespace(t)
	short := net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}
	idle := i.dialNamespace(t, uv.WithKeepAlive(short))
	busy := i.dialNamespace(t, uv.WithUserTimeout(time.Second))
	i.cutCable(t)
	require.NoError(t, busy.WriteFrames(transport.Frame{[]byte("lost")}))

	t.Run("idle", func(t *testing.T) {
		_, err := idle.NextFrame()
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.ErrorContains(t, err, i.addr)
	})
	t.Run("with bytes under way", func(t *testing.T) {
		_, err := busy.NextFrame()
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
	})
	t.Run("dial", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := uv.New().Dial(ctx, i.addr)
			failed <- err
		}()
		cancel()
		err := <-failed
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, i.addr)
	})
}
