package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
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
	joins      bool // both ends support joined tensors
	eager      bool // both ends support eager transfers
	onlyHosts  bool // a tensor from cpu:0 can only go to cpu:0, also if the receiver chooses
}

// prepareSession acquires the resources of a session on conn. It returns an error if that fails;
// conn then stays open. The error matches transport.ErrNotSupported if conn carries no session. The
// server calls prepareSession before it sends the last frame of the handshake, because the client
// considers the pipe open once both ends have these resources. A session of Conns needs none before
// its streams are opened.
func (c *Context) prepareSession(s *spec, conn transport.Conn) error {
	err := transport.ErrNotSupported
	m, ok := conn.(transport.Multiplexer)
	switch {
	case ok && s.maxConns > 0:
		return nil
	case ok:
		err = m.PrepareSession(c.sessionConfig(s))
	}
	if errors.Is(err, transport.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errNoSession, err)
	}
	return err
}

// sessionConfig returns the configuration of a session. In that of a pipe the peer may open as many
// streams as both ends have agreed on, and one more for bulk data; in a session of Conns it may
// open s.maxConns.
func (c *Context) sessionConfig(s *spec) transport.SessionConfig {
	cfg := transport.SessionConfig{
		Client:     s.role == channel.RoleConnect,
		MaxStreams: s.streams() + 1,
		Budget:     windowBudget{c.windows},
	}
	if s.maxConns > 0 {
		cfg.MaxStreams = s.maxConns
	}
	if s.account != nil {
		cfg.Quota = s.account
	}
	return cfg
}

// newNative creates the engine of the native dialect over session, which the engine owns from then
// on, and makes it the engine of the pipe front. It opens no streams; nativePipe.open does.
func newNative(front *Pipe, s *spec, session transport.Session) {
	p := &nativePipe{Pipe: front, session: session, compresses: s.compresses(), joins: s.features&wire.FeatureJoined != 0, eager: s.features&wire.FeatureEager != 0}
	front.engine = p
	p.bulk.init(p, s)
	p.mover = bulk.New(bulk.Config{
		Open:     p.bulk.open,
		Ready:    p.control.sendReady,
		Credit:   p.control.sendCredit,
		Broken:   func(err error) { p.broken("bulk", err) },
		Arrived:  front.arrived,
		Checksum: front.context.opts.Checksum,
		Peer:     front.peerName(),
	})
	p.control.init(p)
	p.out.init(p)
	p.in.init(p)
}

// open opens the streams of the session, and with them the channels of the pipe, and makes the
// channels available to messages. It also sets Inline and InlineMessage of p.plan. The client opens
// each stream and the server accepts it, in the same order at both ends: messages, control, and the
// streams of each channel. It returns the first error, of the session or of a channel; streams that
// are open then stay open until the session is closed.
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
	p.plan.InlineMessage = max(inlineMessage, p.plan.Inline)
	if p.control.stream, err = next(ctx); err != nil {
		return classify(err)
	}
	broken := func(l *pipeChannel, err error) { p.broken("channel "+l.name, err) }
	for i, cs := range s.channels {
		link := channel.Link{
			Native: true, Host: p.mover.Lane(uint16(1 + i)),
			Remote: s.peerDevices[cs.entry.Name], Offer: s.peerOffers[cs.entry.Name],
		}
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
	p.onlyHosts = p.staysOnHost(device.CPU(), device.Device{}, false)
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
	if err := p.awaitCredit(ctx); err != nil {
		return err
	}
	if err := p.in.awaitReads(ctx); err != nil {
		return err
	}
	p.endMessages(ctx)
	return nil
}

// endMessages enqueues a close frame without a reason, unless a close frame is queued already. Once
// the goroutine that writes control frames has ended, endMessages closes the message stream for
// writing; if ctx or the pipe ends first, it returns without that. The caller has waited until all
// messages are written. The order matters: a message stream that ends without a close frame means
// that the process died.
func (p *nativePipe) endMessages(ctx context.Context) {
	p.control.sendClose("")
	if closedBefore(ctx, p.control.wrote, p.down) && p.Err() == nil {
		p.out.stream.CloseWrite()
	}
}

// sendClose enqueues a close frame with closeReason(cause) as its text, or with "aborted" if that
// is empty, as for ErrClosed, or if cause matches ErrPeerClosed. The text is never empty, because
// an empty one promises that every written message follows. If a close frame was enqueued before,
// sendClose does not change that frame. It does not block.
func (p *nativePipe) sendClose(cause error) {
	reason := cmp.Or(closeReason(cause), "aborted")
	if errors.Is(cause, ErrPeerClosed) {
		reason = "aborted"
	}
	p.control.sendClose(reason)
}

func (p *nativePipe) disconnect(cause error) {
	p.mover.Close(cause)
	p.bulk.releaseCredit()
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

// streamFailed handles err, the failure of a stream or connection; conn is its name in the pipe's
// error. Unless err matches ErrProtocol or ErrChecksum, it first waits for the peer's close frame,
// as sessionError does. Then it fails the pipe. But if the peer has sent a close frame without a
// reason, received messages can still be read, and streamFailed only ends all writes with an error.
func (p *nativePipe) streamFailed(conn string, err error) {
	err = p.errorFor("connection", conn, p.sessionError(err))
	if closed, reason := p.control.peerClose(); closed && reason == "" {
		p.stopWriting(err)
		return
	}
	p.fail(err)
}

// sessionError returns the error with which the pipe ends after err, the error of one of its
// streams. An error that matches ErrProtocol or ErrChecksum is returned as it is. Otherwise
// sessionError waits for a close frame of the peer, until the pipe is down and for
// closeFrameTimeout at most. If the peer has sent one, the result matches ErrPeerClosed and has the
// frame's reason. If not, and err only reports that the peer is gone or the stream is closed, the
// session's own error takes its place, if there is one. An orderly end without a close frame
// becomes ErrPeerLost. If this end has closed the session, the result is the error of the pipe.
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

// awaitSessionEnd blocks until the control stream has ended, and so any close frame of the peer has
// been handled. It also returns when the pipe is down, and after closeFrameTimeout.
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

// broken handles err, with which a channel or the bulk connection has failed; conn is its name in
// the pipe's error. It fails the pipe with err. If err means that the peer is gone or that the
// session is closed, it instead starts a goroutine with streamFailed, which waits for the peer's
// close frame first. It does not block.
func (p *nativePipe) broken(conn string, err error) {
	if known := classify(err); !isPeerGone(known) && !errors.Is(known, ErrClosed) {
		p.fail(p.errorFor("connection", conn, known))
		return
	}
	go p.streamFailed(conn, err)
}
