package shm

import (
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// refused is a connection whose handshake failed: all calls say why.
type refused struct {
	local, remote string
	err           error
	closed        atomic.Bool
}

func (r *refused) fault() error {
	if r.closed.Load() {
		return transport.ErrClosed
	}
	return r.err
}

func (r *refused) WriteFrames(...transport.Frame) error { return r.fault() }
func (r *refused) NextFrame() (int64, error)            { return 0, r.fault() }
func (r *refused) ReadBody(...[]byte) error             { return r.fault() }
func (r *refused) CloseWrite() error                    { return nil }
func (r *refused) LocalAddr() string                    { return r.local }
func (r *refused) RemoteAddr() string                   { return r.remote }

func (r *refused) Close() error {
	r.closed.Store(true)
	return nil
}
