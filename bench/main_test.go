package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// asChild is the environment variable that makes this test program run as the second process, so that
// both have the same build flags.
const asChild = "TENSORPIPE_BENCH_CHILD"

func TestMain(m *testing.M) {
	short.SkipPackage("measures between processes")
	if os.Getenv(asChild) != "" {
		if err := RunChild(context.Background(), os.Stdin, os.Stdout, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() != "" {
		// In the format in which benchstat reads the configuration of a run.
		fmt.Println("tcp-congestion-control:", CongestionControl())
	}
	leakcheck.Main(m)
}

func child(t testing.TB) Program {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	// Without this the race detector delays the exit by a second.
	return Program{Path: path, Env: []string{asChild + "=1", "GORACE=atexit_sleep_ms=0"}}
}
