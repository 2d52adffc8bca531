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
	sizes       []wire.SizeClass             // for the server's answer
	features    wire.Features                // those of both ends
	probing     wire.Probing                 // for the server's answer
	peerOffers  map[string][]byte            // the peer's offers, by channel, with which channels were probed
	peerDevices map[string]deviceDescriptors // the peer's devices, by channel
	native      bool                         // the dialect
	maxConns    int                          // of a session of Conns; 0 for a pipe
	desc, reply transport.Conn
	control     transport.Conn  // nil with a C++ peer
	prefetched  *prefetchedConn // reads from desc; at a server in the compatible dialect
	channels    []channelSpec

	// In the native dialect, how to get the bulk connection when it is needed.
	dialBulk    func(context.Context) (transport.Conn, error) // at the client
	pendingBulk *pendingConn                                  // at the server

	account *quota.Account // at the server; the pipe closes it
}

// streams returns the number of streams with which the session of a native pipe begins: one for
// messages, one for control frames, and those that the channels of s need.
func (s *spec) streams() int {
	n := 2
	for _, cs := range s.channels {
		n += cs.entry.Factory.Connections(true)
	}
	return n
}

// release releases what s holds for a pipe that is not built: it stops expecting the bulk
// connection, closes that connection if it has arrived, and closes the account of received memory.
// It does not close other connections.
func (s *spec) release() {
	if s.pendingBulk != nil {
		s.pendingBulk.cancel()
	}
	s.account.Close()
}

// canMultiplex reports whether c implements transport.Multiplexer. Otherwise c cannot carry the
// session of the native dialect.
func canMultiplex(c transport.Conn) bool {
	_, ok := c.(transport.Multiplexer)
	return ok
}

// channelSpec is a channel of a pipe and its connections, in order. In the native dialect it has no
// connections. At the server pending has the expected connections, and conns those that have
// arrived.
type channelSpec struct {
	entry   ChannelEntry
	conns   []transport.Conn
	pending []*pendingConn
}

// build builds a pipe from s in the dialect that s names, registers it with c, starts its
// goroutines and returns it. The pipe then owns the connections of hc. On failure build waits until
// the pipe that it has begun has ended, and returns nil and the error; the caller must then close
// hc.
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

// marker returns what this end announces to peers of this library: the protocol versions that its
// Options allow, and the features that it supports.
func (c *Context) marker() wire.Marker {
	m := wire.Marker{MinVersion: wire.VersionCompatible, MaxVersion: wire.VersionNative, Features: wire.FeatureControl | wire.FeatureJoined}
	if !c.opts.NoEager {
		m.Features |= wire.FeatureEager
	}
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

// chooseDialect decides at the server whether the pipe uses the native dialect, and returns true as
// native if it does. Otherwise reason is why not; it is empty if the client sent a marker and the
// options of this end forbid the native dialect. theirs is the client's marker, the protocol
// versions that it supports; marked is true if the client sent one. noSession is why the transport
// carries no session, or "". The error matches ErrDialect if native is false, reason is not empty
// and one of the ends requires the native dialect. If reason is empty, err is nil: a client that
// requires the native dialect then finds in the answer that it was not chosen.
func (c *Context) chooseDialect(theirs wire.Marker, marked bool, noSession string) (native bool, reason string, err error) {
	ours := c.marker()
	switch {
	case !marked:
		reason = reasonNoMarker
	case ours.MaxVersion < wire.VersionNative: // no reason: this end's options forbid it
	case theirs.MaxVersion < wire.VersionNative || theirs.MinVersion > ours.MaxVersion:
		reason = fmt.Sprintf("the peer's versions %d-%d do not meet ours %d-%d",
			theirs.MinVersion, theirs.MaxVersion, ours.MinVersion, ours.MaxVersion)
	case noSession != "":
		reason = noSession
	default:
		return true, "", nil
	}
	err = c.checkDialect(reason)
	if err == nil && reason != "" && theirs.MinVersion >= wire.VersionNative {
		err = fmt.Errorf("%w: %s requires %s, and %s", ErrDialect, clientName, DialectNative, reason)
	}
	return false, reason, err
}

// acceptDialect checks at the client the dialect that the server chose, and returns true as native
// if that is the native dialect. Otherwise reason is why not; it is empty if the answer has a
// marker and the options of this end forbid the native dialect. chosen is the marker of the
// server's answer, which names the chosen version; marked is true if the answer has one. noSession
// is why the transport carries no session, or "". The error matches ErrDialect if Options.Dialect
// requires the native dialect and the server did not choose it, and ErrProtocol if the server chose
// it although the transport carries no session.
func (c *Context) acceptDialect(chosen wire.Marker, marked bool, noSession string) (native bool, reason string, err error) {
	ours := c.marker()
	switch {
	case !marked:
		reason = reasonNoMarker
	case ours.MaxVersion < wire.VersionNative: // no reason: this end's options forbid it
	case chosen.MinVersion == wire.VersionNative && chosen.MaxVersion == wire.VersionNative:
		if noSession != "" {
			return false, "", protocolError("answer chose the native dialect on a transport that carries no session")
		}
		return true, "", nil
	default:
		reason = cmp.Or(noSession, reasonNotChosen)
	}
	return false, reason, c.checkDialect(reason)
}

// checkDialect is called when the pipe cannot use the native dialect. It returns an error that
// matches ErrDialect if Options.Dialect requires the native dialect, and otherwise nil. reason is
// why the pipe uses the compatible dialect, for the text of the error.
func (c *Context) checkDialect(reason string) error {
	if c.opts.Dialect == DialectNative {
		return fmt.Errorf("%w: %s is required, and %s", ErrDialect, DialectNative, reason)
	}
	return nil
}

// setDialect sets the dialect of the plan to the native one if native is true. If native is false
// the dialect stays; then, if reason is not empty, setDialect puts the native dialect first among
// the rejected candidates, with reason.
func (p *Plan) setDialect(native bool, reason string) {
	if native {
		p.Dialect = DialectNative
		return
	}
	if reason != "" {
		p.Refused = append([]Refusal{{Kind: CandidateDialect, Name: string(DialectNative), Reason: reason}}, p.Refused...)
	}
}
