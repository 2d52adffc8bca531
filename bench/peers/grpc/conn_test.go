package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// TestMain runs the command itself if it has arguments of its own, so that the tests can start the
// server as a process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-over" {
		main()
		return
	}
	leakcheck.Main(m)
}

// TestOverEachConnection makes calls of gRPC over each kind of connection, with the server as a
// process.
func TestOverEachConnection(t *testing.T) {
	for over := range addresses {
		t.Run(over, func(t *testing.T) {
			require.NoError(t, run([]string{"-over", over, "add@4=100", "bytes@1048576=4", "receive@64=2", "send@64=2", "echo@64=100"}))
		})
	}
}
