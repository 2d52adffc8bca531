package main

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// asProgram is the environment variable that makes this test program be tpipe.
// So what runs as a process is built like the tests, with the race detector
// or the tag "invariants".
const asProgram = "TPIPE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	leakcheck.Main(m)
}
