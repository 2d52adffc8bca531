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

// Multiplex implements [transport.Multiplexer]: it makes the connection a session. Between ends of
// this package the session uses the segment of PrepareSession if there is one, and the rings of the
// connection are unmapped once both ends have switched. With a C++ peer the session is one of
// package mux on those rings. The error is that of Stream, or means that the session cannot be
// created; in the second case the connection can only be closed.
func (c *conn) Multiplex(cfg transport.SessionConfig) (transport.Session, error) {
	s, err := c.handOver()
	if err != nil {
		return nil, err
	}
	if !c.doorbells {
		return mux.New(s, cfg)
	}
	c.closeWriteOnce.Do(func() {}) // waits for a CloseWrite in progress; no other uses the rings after this
	failpoint.Here()
	err = c.send(eventSession, nil)
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return nil, err // if the peer is gone receiveEvents detects it
	}
	at := ringsession.Addresses{Local: s.LocalAddr(), Remote: s.RemoteAddr()}
	inner, err := ringsession.NewSessionWithSegment(c.prepared.take(), c.socket, c.receiveDone, cfg, c.wait, at)
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

// Close implements [transport.Session]. It closes the connection, and with it the session and all
// its streams. The error is that of closing the connection.
func (s *session) Close() error { return s.conn.Close() }

// PrepareSession implements [transport.Multiplexer]. It is called at most once, before Multiplex.
// The server creates the session's segment and sends it to the client. The client blocks until the
// segment has arrived. So each end has it mapped, or fails, before its session begins. The
// connection owns the segment until Multiplex or Close. With a C++ peer PrepareSession does
// nothing: the session needs no memory of its own.
//
// The server's error is that of creating or sending the segment. The client's error matches
// io.ErrUnexpectedEOF if the connection has ended before the segment arrived, and ErrProtocol if
// the segment is not one for cfg.MaxStreams, or is a *segment.Error if this system refuses it. If
// the connection is closed during the call, the error can be ErrClosed.
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

// handleFile handles a message that has a file attached, or should have. Its arguments are the
// byte, the control bytes and the flags of the message; it does not keep them. If the byte is
// eventSegment and this end is the client, handleFile keeps the file, or the error of receiving it,
// for PrepareSession, unless one is kept already. Otherwise the peer has violated the protocol:
// handleFile closes the file and makes reads fail with an error that matches ErrProtocol.
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
