// Package invariants checks for misuse in builds with the tag "invariants" and
// costs nothing in others: double release, use after release, work on the
// wrong thread.
package invariants

import "fmt"

// Check panics if ok is false, with a message formatted as by fmt.Sprintf. It does nothing in
// builds without the tag "invariants".
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}

// Scribble overwrites p with the byte 0xcc, so that a use of released memory sees garbage. It does
// nothing in builds without the tag "invariants".
func Scribble(p []byte) {
	if !Enabled {
		return
	}
	for i := range p {
		p[i] = 0xcc
	}
}
