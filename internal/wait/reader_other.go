//go:build !linux

package wait

import "time"

// Reader reads from a socket on behalf of somebody who waits for an answer.
// Here it never spins.
type Reader struct{ socket Socket }

// NewReader returns a Reader of s. The error is nil.
func NewReader(s Socket, _ time.Duration) (*Reader, error) { return &Reader{s}, nil }

// Read is that of the socket.
func (r *Reader) Read(p []byte) (int, error) { return r.socket.Read(p) }
