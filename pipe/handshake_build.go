package pipe

import (
	"cmp"
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// spec is the result of a handshake, from which a pipe is built.
type spec struct {
	role        channel.Role
	peer        string // the peer's name, for errors
	remoteAddr  string
	plan        *Plan
	routes      routes
	sizes       []wire.SizeClass  // for the server's answer
	features    wire.Features     // those of both ends
	probing     wire.Probing      // for the server's answer
	peerOffers  map[string][]byte // the peer's offers, by channel, with which channels were probed
	native      bool              // the dialect
	desc, reply transport.Conn
	control     transport.Conn  // nil with a C++ peer
	prefetched  *prefetchedConn // reads from desc; at a server in the compatible dialect
	channels    []channelSpec

	// In the native dialect, how to get the bulk connection when it is needed.
	dialBulk    func(context.Context) (transport.Conn, error) // at the client
	pendingBulk *pendingConn                                  // at the server

	account *quota.Account // at the server; the pipe closes it
}

// streams returns the number of streams with which a native session begins: one for messages, one for
// control frames, and those that the channels need.
func (s *spec) streams() int {
	n := 2
	for _, cs := range s.channels {
		n += cs.entry.Factory.Connections(true)
	}
	return n
}

// release stops expecting the bulk connection and closes the account, for a pipe that is not built.
// It does not close other connections.
func (s *spec) release() {
	if s.pendingBulk != nil {
		s.pendingBulk.cancel()
	}
	s.account.Close()
}

// canMultiplex reports whether c can carry the session of the native dialect.
func canMultiplex(c transport.Conn) bool {
	_, ok := c.(transport.Multiplexer)
	return ok
}

// channelSpec is a channel of a pipe and its connections, in order. In the native dialect it has no
// connections. At the server pending has the expected connections, and conns those that have arrived.
type channelSpec struct {
	entry   ChannelEntry
	conns   []transport.Conn
	pending []*pendingConn
}

// build builds a pipe from s in the chosen dialect. If it succeeds the pipe owns the connections of
// hc. If it fails the pipe has ended, and the caller closes hc; connections that were not given to a
// channel or session yet still belong to hc.
func (c *Context) build(hc *handshakeConns, s *spec) (*Pipe, error) {
	hc.phase = phaseBuild
	p := newPipe(c, s)
	if s.native {
		if s.role == channel.RoleConnect { // the server has done that before its last frame
			if err := c.prepareSession(s, s.desc); err != nil {
				return nil, err
			}
		}
		session, err := s.desc.(transport.Multiplexer).Multiplex(c.sessionConfig(s)) // prepareSession has checked that
		if err != nil {
			return nil, err
		}
		newNative(p, s, session)
	} else {
		newCompat(p, s)
	}
	err := p.engine.open(hc.ctx, s)
	if err != nil {
		p.closeFrames.abandon()
		p.fail(err)
		p.start(nil)
		<-p.terminated
		return nil, err
	}
	if err = cmp.Or(hc.detach(), p.failOnEviction()); err == nil {
		err = c.register(p)
	}
	p.start(p.engine.loops())
	if err != nil {
		p.fail(err) // sends the peer the reason
		<-p.terminated
		return nil, err
	}
	return p, nil
}

func newPipe(c *Context, s *spec) *Pipe {
	p := &Pipe{
		context:        c,
		events:         c.opts.Events,
		role:           s.role,
		peer:           s.peer,
		addr:           s.remoteAddr,
		plan:           s.plan,
		first:          s.desc,
		account:        s.account,
		channelsByPair: map[devicePair][]sizedChannel{},
		recvDevices:    map[device.Device]device.Device{},
		sendDevices:    map[device.Device]struct{}{},
		nextCh:         make(chan *Incoming),
		closing:        make(chan struct{}),
		closed:         make(chan struct{}),
		peerEnded:      make(chan struct{}),
		down:           make(chan struct{}),
		started:        make(chan struct{}),
		terminated:     make(chan struct{}),
		written:        completedOp(nil),
	}
	p.sender.init(p)
	return p
}

// reasonNoMarker is the reason where the peer is not of this library.
const reasonNoMarker = "the peer does not know it"

// marker returns the protocol versions and features that this end announces to peers of this
// library, according to its options.
func (c *Context) marker() wire.Marker {
	m := wire.Marker{MinVersion: wire.VersionCompatible, MaxVersion: wire.VersionNative, Features: wire.FeatureControl}
	if !c.noCompression {
		m.Features |= wire.FeatureCompression
	}
	switch c.opts.Dialect {
	case DialectCompatible:
		m.MaxVersion = wire.VersionCompatible
	case DialectNative:
		m.MinVersion = wire.VersionNative
	}
	return m
}

// chooseDialect decides at the server whether the pipe uses the native dialect. If it does not, reason
// is why; reason is empty if this end's options forbid the native dialect. theirs is the client's
// marker, marked reports whether the client sent one, and capable whether the connection can carry a
// session. The error matches ErrDialect if Options.Dialect requires the native dialect and that is not
// possible.
func (c *Context) chooseDialect(theirs wire.Marker, marked, capable bool) (native bool, reason string, err error) {
	ours := c.marker()
	switch {
	case !marked:
		reason = reasonNoMarker
	case ours.MaxVersion < wire.VersionNative: // no reason: this end's options forbid it
	case theirs.MaxVersion < wire.VersionNative || theirs.MinVersion > ours.MaxVersion:
		reason = fmt.Sprintf("the peer's versions %d-%d do not meet ours %d-%d",
			theirs.MinVersion, theirs.MaxVersion, ours.MinVersion, ours.MaxVersion)
	case !capable:
		reason = "the transport carries no session"
	default:
		return true, "", nil
	}
	return false, reason, c.checkDialect(reason)
}

// acceptDialect returns at the client whether the server chose the native dialect. If it did not,
// reason is why; reason is empty if this end's options forbid the native dialect. chosen is the marker
// of the server's answer, marked reports whether there is one, and capable whether the connection can
// carry a session. The error matches ErrDialect if Options.Dialect requires the native dialect and the
// server did not choose it, or ErrProtocol if the choice is not possible.
func (c *Context) acceptDialect(chosen wire.Marker, marked, capable bool) (native bool, reason string, err error) {
	ours := c.marker()
	switch {
	case !marked:
		reason = reasonNoMarker
	case ours.MaxVersion < wire.VersionNative: // no reason: this end's options forbid it
	case chosen.MinVersion == wire.VersionNative && chosen.MaxVersion == wire.VersionNative:
		if !capable {
			return false, "", protocolError("answer chose the native dialect on a transport that carries no session")
		}
		return true, "", nil
	default:
		reason = reasonNotChosen
	}
	return false, reason, c.checkDialect(reason)
}

// checkDialect returns an error that matches ErrDialect if Options.Dialect requires the native
// dialect. reason is why the pipe uses the compatible one.
func (c *Context) checkDialect(reason string) error {
	if c.opts.Dialect == DialectNative {
		return fmt.Errorf("%w: %s is required, and %s", ErrDialect, DialectNative, reason)
	}
	return nil
}

// setDialect makes the native dialect that of the plan if native is set. Otherwise, if reason is not
// empty, it adds the native dialect to the rejected candidates, with reason.
func (p *Plan) setDialect(native bool, reason string) {
	if native {
		p.Dialect = DialectNative
		return
	}
	if reason != "" {
		p.Refused = append([]Refusal{{CandidateDialect, string(DialectNative), reason}}, p.Refused...)
	}
}
