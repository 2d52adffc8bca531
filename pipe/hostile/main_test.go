package hostile_test

import (
	"os"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// TestMain runs the tests, or the part of a child process that they started.
func TestMain(m *testing.M) {
	if part := os.Getenv(childPart); part != "" {
		os.Exit(playChild(part))
	}
	leakcheck.Main(m)
}
