package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// nativePipe is the dialect of two ends of ours: one session of streams and, for
// large host memory, one connection more. docs/wire.md says what travels.
type nativePipe struct {
	*Pipe

	session transport.Session
	control nativeControl
	out     nativeOutbox
	in      nativeInbox
	mover   *bulk.Mover
	bulk    bulkOpener

	compresses bool // both ends know how to

	built chan struct{} // closed when the loops run, or will not
	loops sync.WaitGroup
}

// buildNative makes a pipe that speaks the native dialect.
func (c *Context) buildNative(o *opening, s *spec) (*Pipe, error) {
	session, err := c.multiplex(s)
	if err != nil {
		return nil, err
	}
	p := newNative(newPipe(c, s), s, session)
	if err := p.openStreams(o.ctx, s); err != nil {
		p.control.abandon()
		p.fail(err)
		close(p.built)
		<-p.gone
		return nil, err
	}
	err = cmp.Or(o.settle(), p.evictable())
	if err == nil {
		err = c.adopt(p.Pipe)
	}
	p.start()
	if err != nil {
		p.fail(err) // which the peer hears
		<-p.gone
		return nil, err
	}
	return p.Pipe, nil
}

// multiplex turns the connection into a session, which the listening end has prepared.
func (c *Context) multiplex(s *spec) (transport.Session, error) {
	m, ok := s.desc.(transport.Multiplexer)
	if !ok {
		return nil, fmt.Errorf("connection of transport %s: %w", s.plan.Transport, transport.ErrNotSupported)
	}
	if s.role == channel.RoleConnect {
		if err := c.prepareSession(s, s.desc); err != nil {
			return nil, err
		}
	}
	return m.Multiplex(c.sessionConfig(s))
}

// prepareSession acquires the resources of the session on conn. The listening end calls
// it before it sends the last frame that the dialling end waits for: that end counts the
// pipe as open only once both have them.
func (c *Context) prepareSession(s *spec, conn transport.Conn) error {
	if p, ok := conn.(transport.SessionPreparer); ok {
		return p.PrepareSession(c.sessionConfig(s))
	}
	return nil
}

// sessionConfig is that of the pipe's session. The peer may open as many streams as the
// two agreed on, and one for bulk.
func (c *Context) sessionConfig(s *spec) transport.SessionConfig {
	cfg := transport.SessionConfig{
		Client:  s.role == channel.RoleConnect,
		Streams: s.streams() + 1,
		Budget:  windowBudget{c.windows},
	}
	if s.account != nil {
		cfg.Quota = s.account
	}
	return cfg
}

func newNative(front *Pipe, s *spec, session transport.Session) *nativePipe {
	p := &nativePipe{Pipe: front, session: session, compresses: s.compresses(), built: make(chan struct{})}
	front.dialect = p
	p.bulk.init(p, s)
	p.mover = bulk.New(bulk.Config{
		Open:     p.bulk.open,
		Ready:    p.control.ready,
		Broken:   p.bulkBroken,
		Arrived:  front.arrived,
		Checksum: front.context.opts.Checksum,
		Peer:     front.peerName(),
	})
	p.control.init(p)
	p.out.init(p)
	p.in.init(p)
	return p
}

// openStreams makes the streams that both ends agree on, in that order, and the
// channels upon them.
func (p *nativePipe) openStreams(ctx context.Context, s *spec) error {
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
	for i, cs := range s.channels {
		link := channel.Link{Native: true, Host: p.mover.Lane(uint16(1 + i)), Offer: s.tried[cs.entry.Name]}
		for range cs.entry.Factory.Connections(true) {
			stream, err := next(ctx)
			if err != nil {
				return classify(err)
			}
			link.Conns = append(link.Conns, framed.Over(stream))
		}
		if err := p.openChannel(ctx, cs.entry, link, p.channelBroken); err != nil {
			return err
		}
	}
	p.assignLanes(s.routes)
	return nil
}

// start sets the pipe's goroutines going.
func (p *nativePipe) start() {
	labels := pprof.Labels("tensorpipe_peer", p.peerName())
	for _, loop := range []func(){p.in.run, p.out.run, p.control.read, p.control.write} {
		p.loops.Go(func() {
			pprof.Do(context.Background(), labels, func(context.Context) { loop() })
		})
	}
	close(p.built)
}

func (p *nativePipe) confirms() bool { return true }

func (p *nativePipe) stats() PipeStats {
	compression := CompressionStats{Sent: p.out.saved.snapshot(), Received: p.in.saved.snapshot()}
	if !p.compresses {
		compression.Refused = "the peer does not know how to"
	}
	return PipeStats{
		Compression:    compression,
		Sent:           p.out.traffic.snapshot(),
		Received:       p.in.traffic.snapshot(),
		BytesInFlight:  p.out.room.own.InUse(),
		BytesReadAhead: p.in.held.InUse(),
	}
}

func (p *nativePipe) close() error {
	p.out.refuse(p.errorFor("write", "", ErrClosed))
	ctx, cancel := context.WithTimeout(context.Background(), p.context.opts.CloseTimeout)
	defer cancel()
	var drain sync.WaitGroup
	drain.Go(p.in.drain)
	err := p.out.flush(ctx)
	if err == nil {
		err = p.in.awaitReads(ctx)
	}
	if err == nil {
		p.sayNoMore(ctx)
		err = p.awaitPeer(ctx)
	}
	p.fail(ErrClosed)
	drain.Wait()
	<-p.gone
	if err != nil {
		return p.errorFor("close", "", err)
	}
	return nil
}

// sayNoMore announces the end of what this end sends, once all of it has left. The
// goodbye goes first: without one the end of the messages means that the process died.
func (p *nativePipe) sayNoMore(ctx context.Context) {
	p.control.goodbye("")
	if inTime(ctx, p.control.wrote, p.down) && p.Err() == nil {
		p.out.stream.CloseWrite()
	}
}

// awaitPeer waits until the peer has said the same.
func (p *nativePipe) awaitPeer(ctx context.Context) error {
	if !inTime(ctx, p.in.ended, p.down) {
		return fmt.Errorf("%w: the peer has not closed its end", ErrCloseTimeout)
	}
	return nil
}

// answerClose tells a peer that closed that this end has nothing more to write
// either, once the messages under way, which the peer discards, are through.
func (p *nativePipe) answerClose() {
	select {
	case <-p.out.idle():
		p.sayNoMore(context.Background())
	case <-p.down:
	}
}

// fail takes the pipe down and says why to a peer that does not know. The first
// cause stays.
func (p *nativePipe) fail(cause error) {
	p.mu.Lock()
	first := p.cause == nil
	p.cause = cmp.Or(p.cause, cause)
	p.mu.Unlock()
	if first {
		p.control.goodbye(abruptText(cause)) // before anything shows at the peer, or counts as flushed here
		close(p.down)
		go p.tearDown(cause)
	}
}

// tearDown lets go of all memory and closes everything.
func (p *nativePipe) tearDown(cause error) {
	<-p.built
	p.out.stop(p.errorFor("write", "", cause))
	p.mover.Close(cause)
	p.closeChannels(cause)
	p.control.part()
	p.session.Close()
	p.in.minder.stop()
	p.bulk.cancel()
	p.loops.Wait()
	p.in.forget()
	p.control.end()
	p.account.Close()
	p.context.forget(p.Pipe)
	close(p.gone)
}

// abruptText is what the peer is told of an end that it need not wait behind:
// never nothing, which promises that all that was written follows, and not what
// it said itself.
func abruptText(cause error) string {
	if errors.Is(cause, ErrPeerClosed) {
		return "aborted"
	}
	return cmp.Or(goodbyeText(cause), "aborted")
}

// sessionEnded is what the loops call when a stream of theirs has failed, which
// is the end of the pipe, unless the two ends have parted as they should.
func (p *nativePipe) sessionEnded(conn string, err error) {
	err = p.errorFor("connection", conn, p.explain(err))
	if parted, reason := p.control.lastWord(); parted && reason == "" {
		p.out.stop(err)
		return
	}
	p.fail(err)
}

// explain says what the end of the session means. The peer's reason, if it gave
// one, goes before what the closing connection says.
func (p *nativePipe) explain(err error) error {
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrChecksum) {
		return err
	}
	p.awaitSession()
	parted, reason := p.control.lastWord()
	if parted {
		return peerClosed(reason)
	}
	if ended := p.session.Err(); ended != nil && (isGone(classify(err)) || errors.Is(err, ErrClosed)) {
		err = ended // the streams only know that it has ended
	}
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ended without a goodbye", ErrPeerLost)
	case errors.Is(err, ErrClosed):
		return cmp.Or(p.Err(), err) // this end closed the session, and may know why
	default:
		return classify(err)
	}
}

// awaitSession waits for the end of a session of which one stream has failed:
// then it is known what came with it.
func (p *nativePipe) awaitSession() {
	t := time.NewTimer(goodbyeWait)
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

// peerClosed is the error for a peer that said goodbye.
func peerClosed(reason string) error {
	if reason == "" {
		return ErrPeerClosed
	}
	return fmt.Errorf("%w: it says: %q", ErrPeerClosed, reason)
}

// channelBroken is what a channel calls when it breaks on its own. That its
// streams end is how a pipe ends, and shows elsewhere.
func (p *nativePipe) channelBroken(l *lane, err error) { p.broken("channel "+l.name, err) }

// bulkBroken is what the mover calls when its connection breaks.
func (p *nativePipe) bulkBroken(err error) { p.broken("bulk", err) }

func (p *nativePipe) broken(conn string, err error) {
	if known := classify(err); !isGone(known) && !errors.Is(known, ErrClosed) {
		p.fail(p.errorFor("connection", conn, known))
		return
	}
	go p.sessionEnded(conn, err) // it waits for the peer's reason
}
