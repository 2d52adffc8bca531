// Package hostile attacks package pipe. It holds tests only.
//
// Attackers speak to a [pipe.Context] over real TCP connections, byte by byte,
// in either role: as clients of its listeners and as the listener that it
// dials. Beside each attack a healthy pipe on the same context exchanges
// messages and must not notice. docs/faults.md sums up what comes out.
//
// [pipe.Context]: https://pkg.go.dev/github.com/tensorpipe-go/tensorpipe/pipe#Context
package hostile
