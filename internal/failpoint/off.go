//go:build !invariants

package failpoint

// Here does nothing in this build. With the tag "invariants" it is a point at which a test can kill
// the process.
func Here() {}

// Count returns 0: this build counts no failpoints.
func Count() int64 { return 0 }
