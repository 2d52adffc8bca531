package shm

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The segment of a session comes from the end that accepted, while the two still
// negotiate on the rings of the connection. So each end has it mapped, or knows why it
// cannot, before the session begins.

// PrepareSession implements [transport.SessionPreparer]. With a peer that cannot be rung
// a session needs nothing more than the connection has.
func (c *conn) PrepareSession(cfg transport.SessionConfig) error {
	if !c.rings {
		return nil
	}
	share := c.passSegment
	if cfg.Client {
		share = c.awaitSegment
	}
	shared, err := share(cfg.Streams)
	if err != nil {
		return err
	}
	return c.prepared.put(shared)
}

// passSegment creates the session's segment and passes it to the peer.
func (c *conn) passSegment(streams int) (*segment.Segment, error) {
	shared, err := ringnet.CreateShared(streams)
	if err != nil {
		return nil, err
	}
	step.Here()
	err = c.send(sessionSegment, shared.File())
	_ = shared.CloseFile()
	if err != nil {
		shared.Close()
		return nil, err
	}
	return shared, nil
}

// passedFile is the file that came with sessionSegment, or why there is none.
type passedFile struct {
	file *os.File
	err  error
}

// receiveFile takes the file that came with a byte. Only sessionSegment may have one,
// which a peer that was dialled sends once.
func (c *conn) receiveFile(what byte, control []byte, flags int) {
	var came passedFile
	files, err := segment.Received(control, flags, 1)
	if came.err = unusable(err); err == nil {
		came.file = files[0]
	}
	if what == sessionSegment && c.dialled {
		select {
		case c.passed <- came:
			return
		default:
		}
	}
	came.close()
	c.in.blame(protocolError("a file that is not due came with the byte %d", what))
}

func (p passedFile) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// awaitSegment maps the session's segment, which the peer passes.
func (c *conn) awaitSegment(streams int) (*segment.Segment, error) {
	var came passedFile
	select {
	case came = <-c.passed:
	case <-c.left: // the socket has ended
		select {
		case came = <-c.passed:
		default:
			return nil, fmt.Errorf("the peer has passed no memory for the session: %w", io.ErrUnexpectedEOF)
		}
	}
	if came.err != nil {
		return nil, came.err
	}
	defer came.close()
	shared, err := ringnet.MapShared(came.file, streams)
	return shared, unusable(err)
}

// closePassed closes a file that no call has taken. attend has ended.
func (c *conn) closePassed() {
	select {
	case came := <-c.passed:
		came.close()
	default:
	}
}

// preparation holds the segment from PrepareSession until Multiplex or Close.
type preparation struct {
	mu     sync.Mutex
	shared *segment.Segment
	closed bool
}

// put stores the segment. It closes it after close.
func (p *preparation) put(shared *segment.Segment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.shared != nil {
		_ = shared.Close()
		return transport.ErrClosed
	}
	p.shared = shared
	return nil
}

// take returns the segment, of which the caller becomes the owner; nil if there is none.
func (p *preparation) take() *segment.Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	shared := p.shared
	p.shared = nil
	return shared
}

func (p *preparation) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.shared != nil {
		_ = p.shared.Close()
		p.shared = nil
	}
}
