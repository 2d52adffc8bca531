package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// asChild is the environment variable that makes this test program be a second
// process, so that it is built like the tests.
const asChild = "TENSORPIPE_BENCH_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		if err := RunChild(context.Background(), os.Stdin, os.Stdout, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() != "" {
		// As benchstat reads what a run has in common.
		fmt.Println("tcp-congestion-control:", CongestionControl())
	}
	leakcheck.Main(m)
}

func child(t testing.TB) Program {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	// With the race detector a program would pause for a second before it exits.
	return Program{Path: path, Env: []string{asChild + "=1", "GORACE=atexit_sleep_ms=0"}}
}
