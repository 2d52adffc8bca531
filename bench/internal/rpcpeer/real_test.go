package rpcpeer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// requireTorch is the environment variable that makes a test fail, instead of skip, without PyTorch.
const requireTorch = "TENSORPIPE_REQUIRE_TORCH"

func grpcPeer(t *testing.T) *Peer {
	t.Helper()
	peer, err := GRPC(t.Context(), t.TempDir())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return peer
}

func torchPeer(t *testing.T) *Peer {
	t.Helper()
	peer, err := Torch(t.Context())
	if errors.Is(err, errors.ErrUnsupported) && os.Getenv(requireTorch) != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
	return peer
}

func TestGRPC(t *testing.T) { requireMeasures(t, grpcPeer(t)) }

// TestGRPCStreams runs every kind of job with streams over every kind of connection.
func TestGRPCStreams(t *testing.T) {
	peer := grpcPeer(t)
	for _, over := range peer.overs {
		jobs := []Job{Receive(64, 2), Send(64, 2), Echo(64, 100)}
		results, err := peer.Run(t.Context(), Config{Over: over, Jobs: jobs})
		require.NoError(t, err)
		require.Len(t, results, len(jobs))
	}
}

func TestTorch(t *testing.T) { requireMeasures(t, torchPeer(t)) }

// TestTorchReferences runs every kind of job with references over every kind of connection, with a
// third process only for Share.
func TestTorchReferences(t *testing.T) {
	peer := torchPeer(t)
	for _, over := range peer.overs {
		for _, jobs := range [][]Job{{Remote(100)}, {Add(1, 10), Share(100), Remote(100)}} {
			results, err := peer.Run(t.Context(), Config{Over: over, Jobs: jobs})
			require.NoError(t, err)
			require.Len(t, results, len(jobs))
		}
	}
	_, err := peer.Run(t.Context(), Config{Over: TCP, Jobs: []Job{{"remote@3", 1}}})
	require.ErrorContains(t, err, "remote@3")
}

// TestTorchGradients runs every kind of job with distributed autograd over every kind of connection.
func TestTorchGradients(t *testing.T) {
	peer := torchPeer(t)
	for _, over := range peer.overs {
		jobs := []Job{Train(1), EndToEnd(5), Backward(5)}
		results, err := peer.Run(t.Context(), Config{Over: over, Jobs: jobs})
		require.NoError(t, err)
		require.Len(t, results, len(jobs))
	}
}

// requireMeasures runs every kind of job with the peer, over every kind of connection, and fails
// the test unless the results are complete and plausible. The peer itself checks the replies.
func requireMeasures(t *testing.T, peer *Peer) {
	const size, calls = 1 << 20, 3
	for _, over := range peer.overs {
		t.Run(over, func(t *testing.T) {
			// More bytes than fit into a counter of one byte, and more calls than are in flight.
			jobs := []Job{Add(1, 10), Add(64, 300), Bytes(1, 300), Bytes(size, calls)}
			results, err := peer.Run(t.Context(), Config{Over: over, Jobs: jobs})
			require.NoError(t, err)
			require.Len(t, results, len(jobs))
			for i, r := range results {
				t.Logf("%+v", r)
				require.Equal(t, jobs[i].What, r.What)
				require.Positive(t, r.CPU)
			}
			require.Zero(t, results[0].BytesPerSecond)
			require.InEpsilon(t, size*results[3].PerSecond, results[3].BytesPerSecond, 1e-6)
		})
	}
}

func TestGRPCRejectsInvalidJobs(t *testing.T) { requireRejects(t, grpcPeer(t)) }

func TestTorchRejectsInvalidJobs(t *testing.T) { requireRejects(t, torchPeer(t)) }

func requireRejects(t *testing.T, peer *Peer) {
	for _, what := range []string{"dance@1", "add@0", "bytes@268435457"} {
		_, err := peer.Run(t.Context(), Config{Over: TCP, Jobs: []Job{Add(1, 1), {what, 1}}})
		var failed *ProcessError
		require.ErrorAs(t, err, &failed, what)
		require.Contains(t, failed.Stderr, what)
	}
}

func TestGRPCContextEnds(t *testing.T) { requireEndsWithContext(t, grpcPeer(t), Unix) }

func TestTorchContextEnds(t *testing.T) { requireEndsWithContext(t, torchPeer(t), Default) }

// requireEndsWithContext cancels the context of a run of the peer once a process of the run exists.
// It fails the test unless Run then returns the cause, no process of the run exists any more, and
// the run's folder is removed.
func requireEndsWithContext(t *testing.T, peer *Peer, over string) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are looked for in /proc")
	}
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	run := testwait.Start(func() error {
		_, err := peer.Run(ctx, Config{Over: over, Jobs: []Job{Add(1, 1_000_000_000)}})
		return err
	})
	require.Eventually(t, func() bool { return isRunning(t, folder) }, testwait.Limit, time.Millisecond)
	why := errors.New("enough")
	cancel(why)
	require.ErrorIs(t, testwait.Finish(t, run), why)
	require.False(t, isRunning(t, folder))
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}

// isRunning reports whether the command line of any process on this machine contains text.
func isRunning(t *testing.T, text string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), text) { // on an error the process has ended
			return true
		}
	}
	return false
}
