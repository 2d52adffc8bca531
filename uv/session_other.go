//go:build !linux

package uv

import (
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Multiplex makes the connection a session of streams, from the next byte on in both directions,
// and returns it. The session first reads the bytes that the connection has read ahead. The error is
// ErrClosed, ErrHandedOver if the connection is already a stream or a session, or means that cfg is
// invalid. After an invalid cfg the connection can only be closed.
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.stream(c.tcp)
	if err != nil {
		return nil, err
	}
	return mux.New(s, cfg)
}
