package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testcert"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/twohosts"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// Shared memory is offered beside TLS, and preferred within a machine.
func TestSharedMemoryBesideTLS(t *testing.T) {
	if err := shm.New().Viable(); err != nil {
		t.Skip(err)
	}
	config := testcert.New(t)
	group := joinInternal(t, 2, func(_ int, c *Config) { c.TLS = config })
	c, err := group[0].peers.find("worker1").connect(t.Context())
	require.NoError(t, err)
	require.Equal(t, shm.Name, c.pipe.Plan().Transport)
}

// userTimeouts returns the value of TCP_USER_TIMEOUT, in milliseconds, of each connected TCP socket
// of this process.
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

// By default, and with Config.TLS, both ends of a TCP pipe have the TCP_USER_TIMEOUT that ackTimeout
// prescribes.
func TestDefaultUserTimeout(t *testing.T) {
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": testcert.New(t)} {
		t.Run(name, func(t *testing.T) {
			group := joinInternal(t, 2, func(_ int, c *Config) { c.Listen, c.TLS = []string{"uv://127.0.0.1:0"}, config })
			c, err := group[0].peers.find("worker1").connect(t.Context())
			require.NoError(t, err)
			_, secure := c.pipe.TLS()
			require.Equal(t, config != nil, secure)
			bounded := 0
			for _, ms := range userTimeouts(t) {
				if ms == int(ackTimeout.Milliseconds()) {
					bounded++
				}
			}
			require.GreaterOrEqual(t, bounded, 2, "both ends are here")
		})
	}
}

// peerEnv is set in the process in the other namespace: its address and the URL of the store.
const peerEnv = "TENSORPIPE_ISLANDER"

var cableEcho = NewFunc[int, int]("test.echo")

// joinOverCable joins the worker with this rank to a group of two that listens at addr, where bytes
// may stay unacknowledged for one second. The worker of rank 0 serves the store at rendezvous. The
// caller closes the agent.
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

// TestPulledCablePeer runs only in the process on the other host of TestPulledCable: it joins as
// worker1, prints "joined", and serves calls until its standard input ends.
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

// startPeer runs TestPulledCablePeer in a process on the other host, and returns a channel that
// receives the first line of its output, "joined\n". The process is ended at the end of the test.
func startPeer(t *testing.T, hosts twohosts.Hosts, rendezvous string) <-chan string {
	t.Helper()
	cmd := hosts.Command(os.Args[0], "-test.run=^TestPulledCablePeer$")
	cmd.Env = append(os.Environ(), peerEnv+"="+hosts.There+" "+rendezvous)
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

// If a worker's machine disappears from the network, a call without a timeout fails with
// ErrUnreachable. Calls succeed again once the machine is back.
func TestPulledCable(t *testing.T) {
	if testing.Short() {
		t.Skip("waits some seconds for timers of the kernel")
	}
	hosts := twohosts.New(t)
	rendezvous := "tcp://" + hosts.Here + ":" + freeport.Port(t, hosts.Here)
	joined := startPeer(t, hosts, rendezvous)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := joinOverCable(ctx, 0, hosts.Here, rendezvous)
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	require.Equal(t, "joined\n", testwait.Finish(t, joined))
	n, err := cableEcho.Call(ctx, a, "worker1", 1, WithTimeout(0))
	require.NoError(t, err)
	require.Equal(t, 1, n)

	hosts.SetLink(t, false)
	_, err = cableEcho.Call(ctx, a, "worker1", 2, WithTimeout(0))
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NoError(t, ctx.Err())

	hosts.SetLink(t, true)
	n, err = cableEcho.Call(ctx, a, "worker1", 3, WithTimeout(0))
	require.NoError(t, err)
	require.Equal(t, 3, n)
}
