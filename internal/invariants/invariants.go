// Package invariants checks for misuse in builds with the tag "invariants" and
// costs nothing in others: double release, use after release, work on the
// wrong thread.
package invariants

import "fmt"

// Check panics in builds with the tag "invariants" if ok is false.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}

// Scribble overwrites p in builds with the tag "invariants", so that a use of released memory sees
// garbage.
func Scribble(p []byte) {
	if !Enabled {
		return
	}
	for i := range p {
		p[i] = 0xcc
	}
}
