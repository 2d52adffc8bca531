//go:build !invariants

package step

// Here is a point at which a process may die.
func Here() {}
