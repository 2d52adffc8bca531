package uv

import (
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Stream implements [transport.Streamer]. A read deadline loses no bytes; a
// write deadline may end the stream within a record, and so for good.
func (c *tlsConn) Stream() (transport.Stream, error) { return c.stream() }

// Multiplex implements [transport.Multiplexer]. The session spins, below TLS,
// see [WithSpin].
func (c *tlsConn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	fast, err := wait.NewReader(c.tcp, c.spin)
	if err != nil {
		return nil, err
	}
	s, err := c.stream()
	if err != nil {
		return nil, err
	}
	c.socket.src, c.socket.quota = fast, cfg.Quota
	return mux.New(s, cfg)
}

func (c *tlsConn) stream() (*tlsStream, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	before, err := c.giveUpFraming()
	if err != nil {
		return nil, err
	}
	c.out = nil
	return &tlsStream{
		end:    end{conn: c.conn, source: source{before: before, socket: decrypted{c.tls, c.socket}}},
		secure: c,
	}, nil
}

// tlsStream is a tlsConn without its framing.
type tlsStream struct {
	end
	secure *tlsConn
}

func (s *tlsStream) Write(p []byte) (int, error) { return s.secure.writeBytes(p) }
func (s *tlsStream) CloseWrite() error           { return s.secure.CloseWrite() }
func (s *tlsStream) Close() error                { return s.secure.Close() }

// writeBytes stops at the first error: the record that it broke cannot be
// finished.
func (c *tlsConn) writeBytes(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.finished.Load() {
		return 0, transport.ErrClosed
	}
	n, err := c.tls.Write(p)
	c.broken = c.broken || err != nil
	return n, c.writeError(err)
}
