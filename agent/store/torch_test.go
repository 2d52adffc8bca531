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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// requireTorch is the environment variable that turns a missing PyTorch from a
// reason to skip into a failure.
const requireTorch = "TENSORPIPE_REQUIRE_TORCH"

// peer is a process with PyTorch, which takes seconds to start.
type peer struct {
	stdin  io.Closer // it ends when this closes, also if this process dies
	stdout *bufio.Reader
	said   strings.Builder // on stderr
	exited chan struct{}
}

func startTorch(t *testing.T, args ...string) *peer {
	t.Helper()
	cmd := exec.Command("/usr/bin/python3", append([]string{"testdata/torch_peer.py"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &peer{exited: make(chan struct{})}
	cmd.Stderr = &p.said
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
		without(t, err)
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // that it has failed shows in what it printed
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
			t.Log(p.said.String())
		}
	})
	return p
}

func without(t *testing.T, why any) {
	t.Helper()
	if os.Getenv(requireTorch) == "1" {
		t.Fatal(why)
	}
	t.Skip("no PyTorch here: ", why)
}

// slow is how long a line of a peer may take: before the first one it reads all of
// PyTorch, which may have to come from a disk.
const slow = 4 * patience.Limit

// next reads a line into v.
func (p *peer) next(t *testing.T, v any) {
	t.Helper()
	line := patience.FinishWithin(t, slow, patience.Start(func() string {
		s, err := p.stdout.ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return s
	}))
	var missing struct{ Missing string }
	require.NoError(t, json.Unmarshal([]byte(line), &missing), line)
	if missing.Missing != "" {
		without(t, missing.Missing)
	}
	require.NoError(t, json.Unmarshal([]byte(line), v), line)
}

// A client of ours keeps the promises of Store on a server of PyTorch, as far as
// that does.
func TestClientOfPyTorch(t *testing.T) {
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
	s, _ := serve(t, store.ServerOptions{})
	host, port, _ := strings.Cut(s.Addr(), ":")
	p := startTorch(t, "use", host, port)
	var ready struct{ Ready bool }
	p.next(t, &ready)
	require.True(t, ready.Ready)

	mine := s.Store()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Limit)
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

// Two workers of PyTorch find each other through a server of ours, as they do
// through that of torchrun: by Gloo's rendezvous, RPC's, and the barriers of its
// shutdown.
func TestGroupOfPyTorch(t *testing.T) {
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
		var said struct{ Sum []float64 }
		w.next(t, &said)
		require.Equal(t, []float64{float64(rank + 1), float64(rank + 1)}, said.Sum)
	}
	addr, err := s.Store().Get(t.Context(), "/worker/attempt_0/rpc_prefix_0/addrs/worker1")
	require.NoError(t, err)
	require.Contains(t, string(addr), "uv://")
}
