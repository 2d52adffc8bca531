// Package hostile attacks package pipe. It contains tests only.
//
// Attackers exchange hand-made bytes with a [pipe.Context] over real TCP connections, in both
// roles: as clients of its listeners, and as listeners that it dials. During each attack a healthy
// pipe on the same context exchanges messages and must not be affected. docs/faults.md summarises
// the results.
//
// [pipe.Context]: https://pkg.go.dev/github.com/tensorpipe-go/tensorpipe/pipe#Context
package hostile
