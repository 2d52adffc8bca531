package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/twohosts"
)

// hostWorker is a worker of a group of two on two hosts. Its fields are those of Config.
type hostWorker struct {
	Rank       int
	Rendezvous string
	Listen     []string
	Token      string
	StoreAt    string // StoreOptions.Listen
}

func (w hostWorker) join(ctx context.Context) (*Agent, error) {
	return Join(ctx, Config{
		Name: fmt.Sprint("worker", w.Rank), Rank: w.Rank, WorldSize: 2, Rendezvous: w.Rendezvous,
		StoreOptions: store.Options{Listen: w.StoreAt}, Listen: w.Listen, Token: []byte(w.Token),
		Funcs: Funcs{cableEcho.Serve(func(_ context.Context, n int) (int, error) { return n, nil })},
	})
}

// hostWorkerEnv is set in the process on the other host, to the worker as JSON.
const hostWorkerEnv = "TENSORPIPE_HOST_WORKER"

// TestOtherHost runs only in the process on the other host of TestTwoHosts: it joins, calls
// worker0, prints "called" or the error of the call, and serves calls until its standard input
// ends.
func TestOtherHost(t *testing.T) {
	text := os.Getenv(hostWorkerEnv)
	if text == "" {
		t.Skip("the other process of TestTwoHosts")
	}
	var w hostWorker
	require.NoError(t, json.Unmarshal([]byte(text), &w))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := w.join(ctx)
	require.NoError(t, err)
	if n, err := cableEcho.Call(ctx, a, "worker0", 7); err != nil || n != 7 {
		fmt.Println("failed:", n, err)
	} else {
		fmt.Println("called")
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	require.NoError(t, a.Close())
}

// Two workers on two hosts, configured as users do, can call each other. If they publish only
// loopback addresses, the calls fail with an error that asks the user to set Listen.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	hosts := twohosts.New(t)
	for name, test := range map[string]struct {
		edit func(near, far *hostWorker, port string)
		err  string // of the call of worker0, which waits until the other has called; "" for none
	}{
		"default with a token": {edit: func(near, far *hostWorker, _ string) {}},
		"IPv4 wildcard": {edit: func(near, far *hostWorker, _ string) {
			near.Listen = []string{"uv://0.0.0.0:0"}
			far.Listen = near.Listen
		}},
		"IPv6 wildcard": {edit: func(near, far *hostWorker, _ string) { near.Listen = []string{"uv://[::]:0"}; far.Listen = near.Listen }},
		"wildcard store": {edit: func(near, far *hostWorker, port string) {
			near.StoreAt = ":" + port
			near.Listen, far.Listen = []string{"uv://0.0.0.0:0"}, []string{"uv://0.0.0.0:0"}
		}},
		"loopback there": {
			edit: func(near, far *hostWorker, _ string) {
				far.Listen, near.Listen = []string{"uv://127.0.0.1:0", "shm://"}, []string{"uv://127.0.0.1:0"}
			},
			err: "worker1 publishes only loopback addresses; set Listen there",
		},
	} {
		t.Run(name, func(t *testing.T) {
			port := freeport.Port(t, hosts.Here)
			near := hostWorker{Rendezvous: "tcp://" + hosts.Here + ":" + port, Token: "secret"}
			far := near
			far.Rank = 1
			test.edit(&near, &far, port)
			spec, err := json.Marshal(far)
			require.NoError(t, err)
			cmd := hosts.Command(os.Args[0], "-test.run=^TestOtherHost$")
			cmd.Env = append(os.Environ(), hostWorkerEnv+"="+string(spec))
			cmd.Stderr = os.Stderr
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			first := testwait.Start(func() string {
				line, _ := bufio.NewReader(stdout).ReadString('\n')
				return line
			})
			t.Cleanup(func() {
				_ = stdin.Close()
				_ = cmd.Wait()
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			a, err := near.join(ctx)
			require.NoError(t, err)
			defer func() { require.NoError(t, a.Close()) }()
			line := testwait.Finish(t, first)
			n, err := cableEcho.Call(ctx, a, "worker1", 8)
			if test.err != "" {
				require.Contains(t, line, "worker0 publishes only loopback addresses; set Listen there")
				require.ErrorIs(t, err, ErrUnreachable)
				require.ErrorContains(t, err, test.err)
				return
			}
			require.Equal(t, "called\n", line)
			require.NoError(t, err)
			require.Equal(t, 8, n)
		})
	}
}
