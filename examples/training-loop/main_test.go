package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// asCommand is the environment variable that makes the test program run as the command.
const asCommand = "EXAMPLE_TRAININGLOOP"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	leakcheck.Main(m)
}

const wanted = `iteration 1: the gradients are 7 and 1
iteration 2: the gradients are 7 and 1
iteration 3: the gradients are 7 and 1
iteration 4: the gradients are 7 and 1
`

// TestRun checks the output of the workers in this process.
func TestRun(t *testing.T) {
	url := "file://" + t.TempDir() + "/store"
	errs := make(chan error, len(workers))
	var out strings.Builder
	for rank := range workers {
		go func() { errs <- run(t.Context(), rank, url, &out) }()
	}
	for range workers {
		require.NoError(t, <-errs)
	}
	require.Equal(t, wanted, out.String())
}

// TestCommand runs the command of the package comment, which starts all workers as processes.
func TestCommand(t *testing.T) {
	short.Skip(t, "starts processes")
	c := exec.CommandContext(t.Context(), os.Args[0], "-rendezvous", "tcp://"+freeport.Addr(t))
	var out, log strings.Builder
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), asCommand+"=1"), &out, &log
	require.NoError(t, c.Run(), log.String())
	require.Equal(t, wanted, out.String())
	require.Empty(t, log.String())
}
