package samehost_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// childVar holds the arguments of a child process. userVar is set in a process that runs a test as
// another user.
const (
	childVar = "SAMEHOST_TEST_PART"
	userVar  = "SAMEHOST_TEST_USER"
)

// noExitDelay is an environment setting: without it the race detector delays the exit of a process
// by a second.
const noExitDelay = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	short.SkipPackage("processes that are killed at many points")
	if os.Getenv(childVar) == "" {
		leakcheck.Main(m)
	}
	run, childArgs := childMain(os.Getenv(childVar))
	if err := run(childArgs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// childMain returns the main function that the first word of childArgs selects, and the arguments
// for it. If the word selects none, these are runChild and the whole of childArgs.
func childMain(childArgs string) (run func(string) error, args string) {
	kind, args, _ := strings.Cut(childArgs, " ")
	switch kind {
	case restrictedChild:
		return runRestricted, args
	case descriptorsChild:
		return runDescriptors, args
	case meshChild:
		return runMember, args
	}
	return runChild, childArgs
}

// variant is a dialect, and whether the child listens or dials.
type variant struct {
	dialect pipe.Dialect
	listens bool
}

// variants returns the four combinations of a dialect and a role of the child, listening or
// dialling. Under the race detector, with which a child takes a second to start, it returns only
// two of them, which together have both dialects and both roles; an even and an odd i give
// different ones.
func variants(i int) (all []variant) {
	for j, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
		for k, listens := range []bool{false, true} {
			if !race.Enabled || (i+j+k)%2 == 0 {
				all = append(all, variant{dialect, listens})
			}
		}
	}
	return all
}

// child returns the role of the child as text, for the names of subtests.
func (c variant) child() string {
	if c.listens {
		return "child listens"
	}
	return "child dials"
}
