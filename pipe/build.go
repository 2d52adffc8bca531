package pipe

import (
	"cmp"
	"context"
	"runtime/pprof"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// spec is everything a handshake found out: what a pipe is made from.
type spec struct {
	role        channel.Role
	peer        string // what to call the other end
	remoteAddr  string
	plan        *Plan
	routes      routes
	sizes       []wire.SizeClass  // what the answer says of them
	features    wire.Features     // that both ends have
	probing     wire.Probing      // what the answer says, at the listening end
	tried       map[string][]byte // what the peer showed of channels, which were tried with that
	native      bool              // the dialect
	desc, reply transport.Conn
	control     transport.Conn // nil unless both ends are ours
	vigil       *vigil         // on desc, at the listening end of the compatible dialect
	channels    []channelSpec

	// Of the native dialect: how to get the bulk connection, when needed.
	dialBulk   func(context.Context) (transport.Conn, error) // at the end that dialled
	bulkTicket *ticket                                       // at the other

	account *quota.Account // of the listening end; the pipe closes it
}

// streams is the number of streams that a native session begins with.
func (s *spec) streams() int {
	n := 2
	for _, cs := range s.channels {
		n += cs.entry.Factory.Connections(true)
	}
	return n
}

// abandon gives up what a pipe would have owned.
func (s *spec) abandon() {
	if s.bulkTicket != nil {
		s.bulkTicket.cancel()
	}
	s.account.Close()
}

// carriesSession reports whether the native dialect can be spoken on c.
func carriesSession(c transport.Conn) bool {
	_, ok := c.(transport.Multiplexer)
	return ok
}

// channelSpec is a channel and its connections, in order. The listening end
// waits for them with tickets.
type channelSpec struct {
	entry   ChannelEntry
	conns   []transport.Conn
	tickets []*ticket
}

// build makes the pipe and takes its connections over from the opening.
func (c *Context) build(o *opening, s *spec) (*Pipe, error) {
	o.phase = phaseBuild
	if s.native {
		return c.buildNative(o, s)
	}
	return c.buildCompat(o, s)
}

func newPipe(c *Context, s *spec) *Pipe {
	return &Pipe{
		context:  c,
		role:     s.role,
		peer:     s.peer,
		addr:     s.remoteAddr,
		plan:     s.plan,
		first:    s.desc,
		account:  s.account,
		lanes:    map[devicePair][]sizedLane{},
		arriving: map[device.Device]device.Device{},
		leaving:  map[device.Device]struct{}{},
		ahead:    make(chan *Incoming),
		closing:  make(chan struct{}),
		closed:   make(chan struct{}),
		down:     make(chan struct{}),
		gone:     make(chan struct{}),
	}
}

// buildCompat makes a pipe that speaks the compatible dialect.
func (c *Context) buildCompat(o *opening, s *spec) (*Pipe, error) {
	p := newCompat(newPipe(c, s), s)
	err := p.openChannels(o.ctx, s)
	if err == nil {
		err = cmp.Or(o.settle(), p.evictable())
	}
	if err == nil {
		err = c.adopt(p.Pipe)
	}
	if err != nil {
		p.control.abandon()
		p.fail(err)
		close(p.built)
		<-p.gone
		return nil, err
	}
	p.start()
	return p.Pipe, nil
}

func newCompat(front *Pipe, s *spec) *compat {
	p := &compat{
		Pipe:     front,
		desc:     link{s.desc, "descriptor"},
		reply:    replies{link: link{s.reply, "reply"}},
		ends:     2 + len(s.channels),
		built:    make(chan struct{}),
		allEnded: make(chan struct{}),
	}
	if s.vigil != nil {
		p.desc.Conn = s.vigil
	}
	front.dialect = p
	p.control.init(p, s.control)
	p.out.init(p)
	p.in.init(p)
	return p
}

// openChannels makes the channels. One that breaks early takes the pipe down,
// which then waits for the building to end.
func (p *compat) openChannels(ctx context.Context, s *spec) error {
	for _, cs := range s.channels {
		for i, conn := range cs.conns {
			p.channelConns = append(p.channelConns, link{conn, channelConnName(cs.entry.Name, i)})
		}
		if err := p.openChannel(ctx, cs.entry, channel.Link{Conns: cs.conns, Offer: s.tried[cs.entry.Name]}, p.channelEnded); err != nil {
			return err
		}
	}
	p.assignLanes(s.routes)
	return nil
}

// start sets the pipe's goroutines going.
func (p *compat) start() {
	labels := pprof.Labels("tensorpipe_peer", p.peerName())
	for _, loop := range []func(){p.out.run, p.in.run, p.out.readReplies, p.control.run, p.control.write} {
		p.loops.Go(func() {
			pprof.Do(context.Background(), labels, func(context.Context) { loop() })
		})
	}
	close(p.built)
}
