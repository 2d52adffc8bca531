//go:build !invariants

package step

// Here is a point at which a process may die.
func Here() {}

// Passed is how many points the process has come by.
func Passed() int64 { return 0 }
