//go:build !linux

package hugepage

// Advise does nothing: the system chooses.
func Advise([]byte) {}
