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
	life, part := lifeOf(os.Getenv(partVar))
	if err := life(part); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// lifeOf is what a child does, and with which words.
func lifeOf(part string) (life func(string) error, words string) {
	kind, words, _ := strings.Cut(part, " ")
	switch kind {
	case restrictedPart:
		return playRestricted, words
	case descriptorsPart:
		return playDescriptors, words
	case crowdPart:
		return playCrowd, words
	}
	return play, part
}
