package hostile_test

import (
	"flag"
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// TestMain runs the tests, or the role of a child process.
func TestMain(m *testing.M) {
	short.SkipPackage("hundreds of hostile peers")
	if role := os.Getenv(childRole); role != "" {
		os.Exit(runChild(role))
	}
	raiseParallelism()
	leakcheck.Main(m)
}

// raiseParallelism runs more parallel tests than there are processors, since they wait for time
// limits most of the time.
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
