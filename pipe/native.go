package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativePipe is the engine of the native dialect. It uses one session, whose streams carry
// messages, control frames and channels, and one bulk connection for large host memory.
// docs/wire.md specifies the protocol.
type nativePipe struct {
	*Pipe

	session transport.Session
	control nativeControl
	out     nativeWriter
	in      nativeReader
	mover   *bulk.Mover
	bulk    bulkOpener

	compresses bool // both ends support compression
}

// prepareSession acquires the resources of the session on conn, and returns an error if that fails
// or conn can carry no session. The server calls it before it sends the last frame of the
// handshake, because the client considers the pipe open once both ends have these resources.
func (c *Context) prepareSession(s *spec, conn transport.Conn) error {
	m, ok := conn.(transport.Multiplexer)
	if !ok {
		return fmt.Errorf("connection of transport %s: %w", s.plan.Transport, transport.ErrNotSupported)
	}
	return m.PrepareSession(c.sessionConfig(s))
}

// sessionConfig returns the configuration of the session of a pipe. It allows the peer the streams
// on which both ends agreed, and one for bulk data.
func (c *Context) sessionConfig(s *spec) transport.SessionConfig {
	cfg := transport.SessionConfig{
		Client:     s.role == channel.RoleConnect,
		MaxStreams: s.streams() + 1,
		Budget:     windowBudget{c.windows},
	}
	if s.account != nil {
		cfg.Quota = s.account
	}
	return cfg
}

// newNative creates the engine of the native dialect over session and makes it the engine of front. The
// streams are not open yet.
func newNative(front *Pipe, s *spec, session transport.Session) {
	p := &nativePipe{Pipe: front, session: session, compresses: s.compresses()}
	front.engine = p
	p.bulk.init(p, s)
	p.mover = bulk.New(bulk.Config{
		Open:     p.bulk.open,
		Ready:    p.control.sendReady,
		Broken:   func(err error) { p.broken("bulk", err) },
		Arrived:  front.arrived,
		Checksum: front.context.opts.Checksum,
		Peer:     front.peerName(),
	})
	p.control.init(p)
	p.out.init(p)
	p.in.init(p)
}

// open opens the streams of the session and then the channels on their streams. The client opens each
// stream, and the server accepts it, in the same order at both ends: messages, control, and the streams
// of the channels.
func (p *nativePipe) open(ctx context.Context, s *spec) error {
	next := p.session.Accept
	if p.role == channel.RoleConnect {
		next = func(context.Context) (transport.Stream, error) { return p.session.Open() }
	}
	messages, err := next(ctx)
	if err != nil {
		return classify(err)
	}
	p.in.attach(messages)
	p.out.attach(messages)
	p.plan.Inline = p.out.inlineLimit()
	if p.control.stream, err = next(ctx); err != nil {
		return classify(err)
	}
	broken := func(l *pipeChannel, err error) { p.broken("channel "+l.name, err) }
	for i, cs := range s.channels {
		link := channel.Link{Native: true, Host: p.mover.Lane(uint16(1 + i)), Offer: s.peerOffers[cs.entry.Name]}
		for range cs.entry.Factory.Connections(true) {
			stream, err := next(ctx)
			if err != nil {
				return classify(err)
			}
			link.Conns = append(link.Conns, framed.OverStream(stream))
		}
		if err := p.openChannel(ctx, cs.entry, link, broken); err != nil {
			return err
		}
	}
	p.assignChannels(s.routes)
	return nil
}

func (p *nativePipe) loops() []func() {
	return []func(){p.in.run, p.out.run, p.control.read, p.control.write}
}

func (p *nativePipe) confirms() bool { return true }

func (p *nativePipe) stats() PipeStats {
	compression := CompressionStats{Sent: p.out.saved.snapshot(), Received: p.in.saved.snapshot()}
	if !p.compresses {
		compression.Refused = "the peer does not support compression"
	}
	return PipeStats{
		Compression:    compression,
		Received:       p.in.traffic.snapshot(),
		BytesReadAhead: p.in.readAhead.InUse(),
	}
}

func (p *nativePipe) finishWriting(ctx context.Context) error {
	if !closedBefore(ctx, p.sender.idle(), nil) {
		return fmt.Errorf("%w: messages are still being written", ErrCloseTimeout)
	}
	if err := p.in.awaitReads(ctx); err != nil {
		return err
	}
	p.endMessages(ctx)
	return nil
}

// endMessages sends a close frame without a reason and then closes the message stream for
// writing. The caller has waited until all messages are written. It returns early if ctx or the
// pipe ends. The order matters: a message stream that ends without a close frame means that the
// process died.
func (p *nativePipe) endMessages(ctx context.Context) {
	p.control.sendClose("")
	if closedBefore(ctx, p.control.wrote, p.down) && p.Err() == nil {
		p.out.stream.CloseWrite()
	}
}

// sendClose implements engine. The reason is never empty: an empty reason promises that every
// written message follows. The peer does not get its own reason back.
func (p *nativePipe) sendClose(cause error) {
	reason := cmp.Or(closeReason(cause), "aborted")
	if errors.Is(cause, ErrPeerClosed) {
		reason = "aborted"
	}
	p.control.sendClose(reason)
}

func (p *nativePipe) disconnect(cause error) {
	p.mover.Close(cause)
	p.closeChannels(cause)
	// The peer shall get the close frame of this end, and ends its control stream then.
	ctx, cancel := context.WithTimeout(context.Background(), closeFrameTimeout)
	if closedBefore(ctx, p.control.wrote, p.session.Done()) {
		closedBefore(ctx, p.control.ended, p.session.Done())
	}
	cancel()
	p.session.Close()
	p.in.resumeTimer.stop()
	p.bulk.cancel()
	p.running.Wait()
	p.in.releaseUnused()
	p.control.releaseRequests()
}

// streamFailed handles err, the error of the stream or connection with the name conn. It fails the
// pipe. If the peer has closed its end without a reason it only ends all writes, since received
// messages can still be read. It may wait for the peer's close frame, for closeFrameTimeout.
func (p *nativePipe) streamFailed(conn string, err error) {
	err = p.errorFor("connection", conn, p.sessionError(err))
	if closed, reason := p.control.peerClose(); closed && reason == "" {
		p.stopWriting(err)
		return
	}
	p.fail(err)
}

// sessionError returns the pipe's error for err, the error of one of its streams. An error that matches
// ErrProtocol or ErrChecksum stays as it is. Otherwise sessionError waits up to closeFrameTimeout for a
// close frame of the peer. If there is one, it returns ErrPeerClosed with the reason in the frame. If
// not, the error of the session replaces one that only means that the stream has ended, and an orderly
// end without a close frame becomes ErrPeerLost.
func (p *nativePipe) sessionError(err error) error {
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrChecksum) {
		return err
	}
	p.awaitSessionEnd()
	closed, reason := p.control.peerClose()
	if closed {
		return withReason(ErrPeerClosed, reason)
	}
	if ended := p.session.Err(); ended != nil && (isPeerGone(classify(err)) || errors.Is(err, ErrClosed)) {
		err = ended // the errors of the streams do not contain the cause
	}
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ended without a close frame", ErrPeerLost)
	case errors.Is(err, ErrClosed):
		return cmp.Or(p.Err(), err) // this end closed the session
	default:
		return classify(err)
	}
}

// awaitSessionEnd waits, after one stream of the session has failed, until the control stream has
// ended too, so that a close frame of the peer has been handled. It waits for closeFrameTimeout at
// most, and not once the pipe is down.
func (p *nativePipe) awaitSessionEnd() {
	t := time.NewTimer(closeFrameTimeout)
	defer t.Stop()
	select {
	case <-p.control.ended:
	case <-p.session.Done():
		select {
		case <-p.control.ended:
		case <-p.down:
		case <-t.C:
		}
	case <-p.down:
	case <-t.C:
	}
}

// broken fails the pipe after a channel or the bulk connection has failed with err. conn is its name.
// It does not block: if the error means that the peer is gone or the session is closed, streamFailed
// waits for the peer's reason on another goroutine.
func (p *nativePipe) broken(conn string, err error) {
	if known := classify(err); !isPeerGone(known) && !errors.Is(known, ErrClosed) {
		p.fail(p.errorFor("connection", conn, known))
		return
	}
	go p.streamFailed(conn, err)
}
