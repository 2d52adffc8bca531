package hostile_test

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// TestMain runs the tests with a check for leaked goroutines or, in a child process, the role that
// the environment names.
func TestMain(m *testing.M) {
	short.SkipPackage("hundreds of hostile peers")
	if role := os.Getenv(childRole); role != "" {
		os.Exit(runChild(role))
	}
	raiseParallelism()
	leakcheck.Main(m)
}

// raiseParallelism allows at least 8 parallel tests. More tests than there are processors can run,
// since they mostly wait for time limits.
func raiseParallelism() {
	flag.Parse()
	const enough = 8
	if n, _ := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int); n < enough {
		_ = flag.Set("test.parallel", strconv.Itoa(enough))
	}
}
