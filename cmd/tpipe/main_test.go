package main

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// asProgram is the environment variable with which the test binary runs as tpipe. The
// processes of the tests are thus built like the tests, with the race detector or the tag
// "invariants".
const asProgram = "TPIPE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	leakcheck.Main(m)
}
