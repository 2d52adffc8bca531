package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// asCommand is the environment variable that makes the test program run as the command.
const asCommand = "EXAMPLE_CALLS"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	leakcheck.Main(m)
}

const wanted = "f32[2,2] ends with 40\n"

func TestCalls(t *testing.T) {
	url := "file://" + t.TempDir() + "/store"
	served := make(chan error, 1)
	go func() { served <- worker{rank: 1, rendezvous: url}.run(t.Context(), nil) }()
	var out strings.Builder
	require.NoError(t, worker{rendezvous: url}.run(t.Context(), &out))
	require.NoError(t, <-served)
	require.Equal(t, wanted, out.String())
}

// commandHere returns a command that runs the example with args as a process of this test binary.
// The caller starts the command, which is killed when the test ends.
func commandHere(t *testing.T, args ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	return c
}

// TestCallsByHand runs the two commands of the README, each in a process and in either order, and
// tests their output.
func TestCallsByHand(t *testing.T) {
	for _, order := range []string{"10", "01"} {
		t.Run(order, func(t *testing.T) {
			url := "tcp://" + freeport.Addr(t)
			var started []*exec.Cmd
			var out [2]strings.Builder
			for i, rank := range strings.Split(order, "") {
				c := commandHere(t, "-rank", rank, "-rendezvous", url)
				c.Stdout, c.Stderr = &out[i], &out[i]
				require.NoError(t, c.Start())
				started = append(started, c)
			}
			for i, c := range started {
				require.NoError(t, c.Wait(), out[i].String())
			}
			require.Equal(t, wanted, out[0].String()+out[1].String())
		})
	}
}
