package samehost_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// partVar tells a process that it is a child, and its part; userVar that it runs
// a test as another user.
const (
	partVar = "SAMEHOST_TEST_PART"
	userVar = "SAMEHOST_TEST_USER"
)

// prompt has the race detector end a process at once, and not after a second.
const prompt = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	if os.Getenv(partVar) == "" {
		leakcheck.Main(m)
	}
	life := play
	part, less := strings.CutPrefix(os.Getenv(partVar), restrictedPart+" ")
	if less {
		life = playRestricted
	}
	if err := life(part); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
