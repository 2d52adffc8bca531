package tensorpipe

import (
	"context"
	"net"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// DialConn opens a [net.Conn], a stream of bytes, to a listener of Conns at url, by the best
// transport of [DefaultProfile] that both ends share. The caller must close the Conn. As net.Dial
// does, each call opens a connection. A program with several Conns to one peer, with TLS or with
// options of its own calls [pipe.Context.DialConn] of one context instead: its Conns share a
// session. ctx bounds the call only.
//
// The Conn has the methods of a [pipe.Conn]. The error is that of [pipe.Context.DialConn].
func DialConn(ctx context.Context, url string) (net.Conn, error) {
	c, err := NewContext(pipe.Options{})
	if err != nil {
		return nil, err
	}
	conn, err := c.DialConn(ctx, url)
	if err != nil {
		return nil, errtext.Join(err, c.Close())
	}
	return ownedConn{conn.(*pipe.Conn), c}, nil
}

// ownedConn is a Conn that has a context of its own.
type ownedConn struct {
	*pipe.Conn
	context *pipe.Context
}

// Close closes the Conn, as [pipe.Conn.Close] does, and the context, whose session it waits for.
func (c ownedConn) Close() error { return errtext.Join(c.Conn.Close(), c.context.Close()) }

// ListenConn opens a listener of Conns, which the caller must close, at each of urls, such as
// "uv://127.0.0.1:7000" and "shm://". Each client uses the best transport of [DefaultProfile] that
// it shares, whichever url it dials. Conns that Accept has returned stay open after Close of the
// listener. ctx bounds the call only.
//
// The listener and the error are those of [pipe.Context.ListenConn], which a program with TLS or
// with options of its own calls instead.
func ListenConn(ctx context.Context, urls ...string) (net.Listener, error) {
	c, err := NewContext(pipe.Options{})
	if err != nil {
		return nil, err
	}
	return c.ListenConn(ctx, urls...) // without listener and Conns, c holds nothing to be closed
}
