package hostile_test

import (
	"flag"
	"os"
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

// raiseParallelism allows 8 parallel tests, unless the flag -test.parallel is given. More tests
// than there are processors can run, since they mostly wait for time limits.
func raiseParallelism() {
	flag.Parse()
	if !flagGiven("test.parallel") {
		_ = flag.Set("test.parallel", "8")
	}
}

func flagGiven(name string) (yes bool) {
	flag.Visit(func(f *flag.Flag) { yes = yes || f.Name == name })
	return yes
}
