package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestPS checks that tpipe ps shows a live worker of a dynamic group with its calls, bytes and paths,
// one that was killed and one that is stopped with the reason, and that its JSON has the same.
func TestPS(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "store")
	var workers []*process
	for _, name := range []string{"live", "killed", "stopped"} {
		w := start(t, "worker", "-rendezvous", url, "-name", name)
		w.lineWith("ready as")
		workers = append(workers, w)
	}
	workers[1].signal(syscall.SIGKILL)
	workers[1].wait()
	workers[2].signal(syscall.SIGSTOP)
	defer workers[2].resume()

	line := []string{"ps", "-rendezvous", url, "-timeout", "2s"}
	stdout, stderr, code := tpipe(t, line...)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	rows := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	require.Len(t, rows, 4)
	for i, pattern := range []string{
		`^WORKER +RANK +INCARNATION +ADDRESS +CALLS +SERVING +HELD +OWNED +SENT +RECEIVED +PATHS$`,
		`^live +0 +[0-9a-f]{8} +\S.*://.* +0 +0 +- +- +0 B +0 B +-$`,
		`^killed +1 +[0-9a-f]{8} +\S.*://.* +- +- +- +- +- +- +unreachable: .*connection refused$`,
		`^stopped +2 +[0-9a-f]{8} +\S.*://.* +- +- +- +- +- +- +timed out: no answer within 2s$`,
	} {
		require.Regexp(t, regexp.MustCompile(pattern), rows[i])
	}
	stdout, stderr, code = tpipe(t, append(line, "-json")...)
	require.Zero(t, code, stderr)
	var all []psRow
	require.NoError(t, json.Unmarshal([]byte(stdout), &all))
	require.Len(t, all, 3)
	require.Empty(t, all[0].Error)
	require.Len(t, all[0].Incarnation, 32)
	require.NotEmpty(t, all[0].Addresses)
	require.Contains(t, all[1].Error, "unreachable")
	require.Contains(t, all[2].Error, "no answer within 2s")
}

// TestPSOfStaticGroup checks that tpipe ps shows the workers of a static group, which has no clients,
// that it needs the token of the group, and its errors.
func TestPSOfStaticGroup(t *testing.T) {
	dir := t.TempDir()
	url, token := "file://"+filepath.Join(dir, "store"), filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	line := []string{"worker", "-rendezvous", url, "-token-file", token, "-world", "2"}
	first := start(t, append(line, "-rank", "0")...)
	second := start(t, append(line, "-rank", "1", "-name", "other")...)
	first.lineWith("ready as")
	second.lineWith("ready as")
	stdout, stderr, code := tpipe(t, "ps", "-rendezvous", url, "-token-file", token)
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^worker0 +0 .* 0 B +-$`, stdout)
	require.Regexp(t, `(?m)^other +1 .* 0 B +-$`, stdout)
	stdout, stderr, code = tpipe(t, "ps", "-rendezvous", url)
	require.Zero(t, code, stderr)
	require.Equal(t, 2, strings.Count(stdout, "does not know the token of the group"), stdout)
	_, stderr, code = tpipe(t, "ps", "-rendezvous", url, "-group", "none")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, `group "none": no such group on the store`)
	_, stderr, code = tpipe(t, "ps", "-rendezvous", url, "-timeout", "0s")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "-timeout 0s: want more than 0")
	second.stop()
	first.stop()
}

// TestPSPaths checks the columns of references, and the last one: paths in order, with names or their
// number.
func TestPSPaths(t *testing.T) {
	status := agent.WorkerStatus{Worker: agent.WorkerInfo{Name: "a"}, Client: true, Calls: 2, Serving: 1, Sent: 3 << 20, Received: 1536, Metrics: map[string]int64{"user_rrefs": 5}}
	for _, p := range []struct{ name, path string }{{"b", "uv+basic"}, {"c", "shm+cma"}, {"d", "shm+cma"}} {
		status.Pipes = append(status.Pipes, agent.PipeStatus{Worker: agent.WorkerInfo{Name: p.name}, Path: p.path})
	}
	row := newPSRow(&status)
	require.Equal(t, "shm+cma to c, d; uv+basic to b", row.paths())
	var b strings.Builder
	require.NoError(t, printPS(&b, []psRow{row}))
	require.Regexp(t, `a \(client\) +0 +00000000 +2 +1 +5 +- +3 MiB +1.5 KiB +shm\+cma to c, d; uv\+basic to b`, b.String())
	for range 3 {
		row.Pipes = append(row.Pipes, psPipe{Worker: "e", Path: "shm+cma"})
	}
	require.Equal(t, "shm+cma to 5 members; uv+basic to b", row.paths())
}

// TestPSReferences checks that tpipe ps shows the remote references that each worker holds, and the
// values that it owns.
func TestPSReferences(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "store")
	var agents []*agent.Agent
	for _, name := range []string{"owner", "user"} {
		a, err := agent.Join(t.Context(), agent.Config{
			Name: name, Rank: -1, Rendezvous: url, Logger: slog.New(slog.DiscardHandler), Extensions: []agent.Extension{rref.New(rref.Options{})},
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = a.Close() }) // of a test that is skipped or has failed
		agents = append(agents, a)
	}
	x, err := tensor.FromSlice([]float32{1}, 1)
	require.NoError(t, err)
	held := rref.RemoteOp[*tensor.Tensor](t.Context(), agents[1], "owner", "aten::neg", x)
	_, err = held.Created().Wait(t.Context())
	require.NoError(t, err)
	own := rref.Own(agents[0], 1)
	stdout, stderr, code := tpipe(t, "ps", "-rendezvous", url)
	require.Zero(t, code, stderr)
	require.Regexp(t, `(?m)^owner +0 .*://\S+ +0 +0 +0 +2 `, stdout)
	require.Regexp(t, `(?m)^user +1 .*://\S+ +0 +0 +1 +0 `, stdout)
	stdout, stderr, code = tpipe(t, "ps", "-rendezvous", url, "-json")
	require.Zero(t, code, stderr)
	var all []psRow
	require.NoError(t, json.Unmarshal([]byte(stdout), &all))
	require.EqualValues(t, 1, all[0].Metrics["forks"])
	require.NoError(t, own.Release(t.Context()))
	require.NoError(t, held.Release(t.Context()))
	for _, a := range agents {
		require.NoError(t, a.Shutdown(t.Context()))
	}
}
