package store_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/store/storetest"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// requireTorch is the environment variable that makes a test fail, instead of skip,
// without PyTorch.
const requireTorch = "TENSORPIPE_REQUIRE_TORCH"

// peer is a process that runs PyTorch. It takes seconds to start.
type peer struct {
	stdin  io.Closer // closing it ends the process, also when this process dies
	stdout *bufio.Reader
	stderr strings.Builder
	exited chan struct{}
}

func startTorch(t *testing.T, args ...string) *peer {
	t.Helper()
	cmd := exec.Command("/usr/bin/python3", append([]string{"testdata/torch_peer.py"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &peer{exited: make(chan struct{})}
	cmd.Stderr = &p.stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, in, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = in
	p.stdin, p.stdout = stdin, bufio.NewReader(out)
	err = cmd.Start()
	in.Close()
	t.Cleanup(func() { out.Close() })
	if err != nil {
		stdin.Close()
		skipOrFail(t, err)
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // a failure shows in what it printed
	}()
	t.Cleanup(func() {
		stdin.Close()
		select {
		case <-p.exited:
		default:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		<-p.exited
		if t.Failed() {
			t.Log(p.stderr.String())
		}
	})
	return p
}

func skipOrFail(t *testing.T, why any) {
	t.Helper()
	if os.Getenv(requireTorch) == "1" {
		t.Fatal(why)
	}
	t.Skip("no PyTorch here: ", why)
}

// slow bounds the time until a process has printed a line. Before the first one it
// imports PyTorch, which may have to be read from a disk.
const slow = 4 * testwait.Limit

// next reads the next line that the PyTorch process prints, and decodes it as JSON into the
// variable that v points to. If the line reports that PyTorch is missing, next skips or fails the
// test.
func (p *peer) next(t *testing.T, v any) {
	t.Helper()
	line := testwait.FinishWithin(t, slow, testwait.Start(func() string {
		s, err := p.stdout.ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return s
	}))
	var missing struct{ Missing string }
	require.NoError(t, json.Unmarshal([]byte(line), &missing), line)
	if missing.Missing != "" {
		skipOrFail(t, missing.Missing)
	}
	require.NoError(t, json.Unmarshal([]byte(line), v), line)
}

// TestClientOfPyTorch runs the conformance tests on clients of a TCPStore that PyTorch serves,
// except for the tests of that server's known faults. It also tests that the key of PyTorch's
// counter of clients does not collide with a user's key.
func TestClientOfPyTorch(t *testing.T) {
	short.Skip(t, "starts PyTorch")
	var served struct{ Port int }
	startTorch(t, "serve").next(t, &served)
	addr := fmt.Sprint("127.0.0.1:", served.Port)
	var number atomic.Int64
	storetest.Run(t, storetest.Backend{
		CompareAndSetWakesNobody: true,
		RefusesByClosing:         true,
		New: func(t *testing.T) (a, b store.Store) {
			prefix := fmt.Sprint(number.Add(1))
			return store.Prefix(dial(t, addr), prefix), store.Prefix(dial(t, addr), prefix)
		},
	})
	t.Run("CountsItself", func(t *testing.T) {
		c := dial(t, addr)
		_, err := c.Get(t.Context(), "init/")
		require.ErrorIs(t, err, store.ErrNotFound, "that is a key of users")
	})
}

func TestServerOfPyTorch(t *testing.T) {
	short.Skip(t, "starts PyTorch")
	s, _ := serve(t, store.ServerOptions{})
	host, port, _ := strings.Cut(s.Addr(), ":")
	p := startTorch(t, "use", host, port)
	var ready struct{ Ready bool }
	p.next(t, &ready)
	require.True(t, ready.Ready)

	mine := s.Store()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	require.NoError(t, mine.Wait(ctx, "asked"))
	require.NoError(t, mine.Set(ctx, "answer1", []byte("one")))
	_, err := mine.CompareAndSet(ctx, "answer2", nil, []byte("two"))
	require.NoError(t, err)
	var seen map[string]any
	p.next(t, &seen)
	require.Equal(t, map[string]any{
		"get": "one", "empty": "", "large": true,
		"add": []any{40.0, 42.0, -8.0}, "number": "-8",
		"create": "one", "swap": "two", "mismatch": "two", "absent": "expected",
		"delete": []any{true, false},
		"keys":   5.0, // empty, large, number, cas, and the counter of clients
		"answer": "two", "hasty": "timed out", "last": "one",
	}, seen)
	value, err := store.Prefix(store.Prefix(mine, "outer"), "inner").Get(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, "prefixed", string(value))
}

// TestGroupOfPyTorch tests that two workers of PyTorch find each other through a Server with the
// settings of torchrun, call each other by RPC, and have published their addresses in the store.
func TestGroupOfPyTorch(t *testing.T) {
	short.Skip(t, "starts PyTorch")
	s, _ := serve(t, store.ServerOptions{})
	host, port, _ := strings.Cut(s.Addr(), ":")
	for name, value := range map[string]string{
		"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": "2",
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
		"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", // nothing leaves this machine
	} {
		t.Setenv(name, value)
	}
	var workers []*peer
	for rank := range 2 {
		t.Setenv("RANK", fmt.Sprint(rank))
		workers = append(workers, startTorch(t, "rpc"))
	}
	for _, w := range workers {
		var ready struct{ Ready bool }
		w.next(t, &ready)
		require.True(t, ready.Ready)
	}
	for rank, w := range workers {
		var stderr struct{ Sum []float64 }
		w.next(t, &stderr)
		require.Equal(t, []float64{float64(rank + 1), float64(rank + 1)}, stderr.Sum)
	}
	addr, err := s.Store().Get(t.Context(), "/worker/attempt_0/rpc_prefix_0/addrs/worker1")
	require.NoError(t, err)
	require.Contains(t, string(addr), "uv://")
}
