package mem

import (
	"context"
	"io"
)

// DialRaw connects to a listener as a peer that writes bytes without framing.
func (t *Transport) DialRaw(addr string) (io.WriteCloser, error) {
	c, err := t.Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	return rawConn{c.(*conn)}, nil
}

type rawConn struct{ *conn }

func (c rawConn) Write(p []byte) (int, error) { return c.out.Write(p) }
