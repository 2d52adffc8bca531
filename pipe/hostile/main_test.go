package hostile_test

import (
	"flag"
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// TestMain runs the tests, or the part of a child process that they started.
func TestMain(m *testing.M) {
	if part := os.Getenv(childPart); part != "" {
		os.Exit(playChild(part))
	}
	waitTogether()
	leakcheck.Main(m)
}

// waitTogether lets more parallel tests run at once than there are processors:
// they wait for time limits, and hardly compute.
func waitTogether() {
	flag.Parse()
	if !given("test.parallel") {
		_ = flag.Set("test.parallel", "8")
	}
}

func given(name string) (yes bool) {
	flag.Visit(func(f *flag.Flag) { yes = yes || f.Name == name })
	return yes
}
