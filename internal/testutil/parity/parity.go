// Package parity names tests after the cases of other systems' test suites, so that coverage can be
// counted from the output of go test -json.
package parity

import "testing"

// Case runs f as a subtest of t named id, such as "tensorpipe/core.SimpleWriteRead". The slash makes
// the part before it a level of its own in the name of the test.
func Case(t *testing.T, id string, f func(t *testing.T)) {
	t.Helper()
	t.Run(id, f)
}
