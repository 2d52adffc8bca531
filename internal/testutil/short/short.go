// Package short leaves out tests that take long when go test runs with -short.
package short

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Skip skips the test t if go test runs with -short, and logs reason, which should explain why the
// test takes long. Otherwise it does nothing.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out with -short: ", reason)
	}
}

// SkipPackage prints reason and exits the process with status 0 if go test runs with -short, and
// otherwise returns. It parses the command line if needed. A TestMain calls it before it runs
// tests.
func SkipPackage(reason string) {
	if !flag.Parsed() {
		flag.Parse()
	}
	if testing.Short() {
		fmt.Println("left out with -short:", reason)
		os.Exit(0)
	}
}
