package simnet

import (
	"fmt"
	"syscall"
)

// ResetError is what both ends of a link get that was cut. It matches
// syscall.ECONNRESET, as a reset of a TCP connection does.
type ResetError struct {
	Link int // number of the link
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("simnet: link %d was cut: %v", e.Link, syscall.ECONNRESET)
}

// Unwrap returns syscall.ECONNRESET.
func (e *ResetError) Unwrap() error { return syscall.ECONNRESET }
