package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Multiplex implements [transport.Multiplexer]. The session uses the segment of PrepareSession if
// there is one; the connection's own memory is released once both ends have switched. With a peer
// without doorbells the session is one of package mux on the connection's rings. After an error the
// connection can only be closed.
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.handOver()
	if err != nil {
		return nil, err
	}
	if !c.doorbells {
		return mux.New(s, cfg)
	}
	failpoint.Here()
	err = c.send(eventSession, nil)
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return nil, err // if the peer is gone receiveEvents detects it
	}
	at := ringsession.Addresses{Local: s.LocalAddr(), Remote: s.RemoteAddr()}
	inner, err := ringsession.NewSessionWithSegment(c.prepared.take(), c.socket, c.receiveDone, cfg, c.spin, at)
	if err != nil {
		return nil, err
	}
	c.session.Store(inner)
	if c.closed.Load() { // Close may not have seen the session
		_ = inner.Close()
		return nil, transport.ErrClosed
	}
	_ = c.socket.SetReadDeadline(past) // wakes receiveEvents
	return &session{inner, c}, nil
}

// session is the session that Multiplex returns for a peer with doorbells. Its Close closes the
// connection, and so the session too.
type session struct {
	*ringsession.Session
	conn *conn
}

// Close implements [transport.Session]. It closes the connection, which closes the session.
func (s *session) Close() error { return s.conn.Close() }

// PrepareSession implements [transport.Multiplexer]. The server creates the session's segment and
// sends it to the client. The client blocks until the segment has arrived. So both ends have it
// mapped, or fail, before the session begins. With a peer without doorbells PrepareSession does
// nothing: the session needs no memory of its own. For the client, the error matches
// io.ErrUnexpectedEOF if the peer or this end has closed before, and ErrProtocol if the segment is
// not one for cfg.MaxStreams.
func (c *conn) PrepareSession(cfg transport.SessionConfig) error {
	if !c.doorbells {
		return nil
	}
	var shared *segment.Segment
	if cfg.Client {
		var got receivedFile
		select {
		case got = <-c.received:
		case <-c.receiveDone: // the socket has ended
			select {
			case got = <-c.received:
			default:
				return fmt.Errorf("the peer has passed no memory for the session: %w", io.ErrUnexpectedEOF)
			}
		}
		if got.err != nil {
			return got.err
		}
		defer got.close()
		var err error
		if shared, err = ringsession.MapSegment(got.file, cfg.MaxStreams); err != nil {
			return mapError(err)
		}
	} else {
		var err error
		if shared, err = ringsession.CreateSegment(cfg.MaxStreams); err != nil {
			return err
		}
		failpoint.Here()
		err = c.send(eventSegment, shared.File())
		_ = shared.CloseFile()
		if err != nil {
			shared.Close()
			return err
		}
	}
	return c.prepared.put(shared)
}

// receivedFile is the file that came with eventSegment, or the reason why none was received. Its
// owner calls close, which closes the file.
type receivedFile struct {
	file *os.File
	err  error
}

// handleFile handles a message that has files attached, or should have: the event what, with the
// control bytes and the flags of the message. For eventSegment at a client it keeps the file, or
// the error of receiving it, for PrepareSession, unless one is kept already. Any other such message
// is a violation: handleFile closes its file and makes reads fail with an error that matches
// ErrProtocol.
func (c *conn) handleFile(what byte, control []byte, flags int) {
	var got receivedFile
	files, err := segment.Received(control, flags, 1)
	if got.err = mapError(err); err == nil {
		got.file = files[0]
	}
	if what == eventSegment && c.dialled {
		select {
		case c.received <- got:
			return
		default:
		}
	}
	got.close()
	c.in.fail(protocolError("an unexpected file came with the byte %d", what))
}

func (p receivedFile) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// preparedSegment owns the segment of a session from PrepareSession until Multiplex takes it or
// Close closes it.
type preparedSegment struct {
	mu     sync.Mutex
	shared *segment.Segment
	closed bool
}

// put stores shared, which it owns from then on. If the connection is closed, or a segment is
// stored already, it closes shared and returns ErrClosed.
func (p *preparedSegment) put(shared *segment.Segment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.shared != nil {
		_ = shared.Close()
		return transport.ErrClosed
	}
	p.shared = shared
	return nil
}

// take removes the stored segment and returns it, nil if there is none. The caller owns it.
func (p *preparedSegment) take() *segment.Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	shared := p.shared
	p.shared = nil
	return shared
}

func (p *preparedSegment) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.shared != nil {
		_ = p.shared.Close()
		p.shared = nil
	}
}
