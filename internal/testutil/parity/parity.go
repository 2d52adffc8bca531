// Package parity names tests after the cases of other systems' test suites, so that coverage can be
// counted from the output of go test -json.
package parity

import "testing"

// Case runs f as a subtest of t with the name id, such as "tensorpipe/core.SimpleWriteRead", and
// returns when it has ended. The part before the slash becomes a level of its own in the test's
// name.
func Case(t *testing.T, id string, f func(t *testing.T)) {
	t.Helper()
	t.Run(id, f)
}
