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
const asCommand = "EXAMPLE_PARAMETERSERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	leakcheck.Main(m)
}

// TestCommand runs the command of the package comment, and checks that the line is fitted although a
// trainer was killed.
func TestCommand(t *testing.T) {
	short.Skip(t, "starts processes")
	c := exec.CommandContext(t.Context(), os.Args[0], "-rendezvous", "tcp://"+freeport.Addr(t))
	var out, log strings.Builder
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), asCommand+"=1"), &out, &log
	require.NoError(t, c.Run(), log.String())
	require.Equal(t, `trainer2 has made 10 steps
trainer2 was killed
trainer1 has made 10 steps
trainer2 has made 10 steps
trainer3 has made 10 steps
the server has y = 3.00x -2.00
`, out.String(), log.String())
}
