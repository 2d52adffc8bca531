//go:build !linux

package hugepage

// Advise does nothing: this system chooses the size of pages itself.
func Advise([]byte) {}
