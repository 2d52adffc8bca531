package mem

import (
	"context"
	"io"
)

// DialRaw connects to the listener with the name addr and returns the dialled end as a writer
// without framing: written bytes reach the peer unchanged. Close closes the connection.
func (t *Transport) DialRaw(addr string) (io.WriteCloser, error) {
	c, err := t.Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	return rawConn{c.(*conn)}, nil
}

type rawConn struct{ *conn }

func (c rawConn) Write(p []byte) (int, error) { return c.out.Write(p) }
