// Package parity names tests after the cases of the systems this project is
// compared with, so that coverage can be counted from the output of
// go test -json.
package parity

import "testing"

// Case runs f as a subtest named id, as in "tensorpipe/core.SimpleWriteRead".
// The slash makes the part before it a level of its own in the test's name.
func Case(t *testing.T, id string, f func(t *testing.T)) {
	t.Helper()
	t.Run(id, f)
}
