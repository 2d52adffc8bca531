package hostile_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The words of an honest handshake, for attackers to bend.

func hello() []byte { return wire.SpontaneousConnection{ContextName: "attacker"}.Append(nil) }

func request(id uint64) []byte { return wire.RequestedConnection{RegistrationID: id}.Append(nil) }

func goodBrochure() *wire.Brochure {
	return &wire.Brochure{
		TransportDomainDescriptors: map[string]string{"uv": "uv:*"},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{basic.Name: {device.CPU(): "any"}},
	}
}

// Ids that the attacker hands out as a listener.
const (
	replyID   = 10
	basicID   = 11
	controlID = 12
)

// marker makes the victim take the attacker for an end of ours.
var marker = wire.Marker{Features: wire.FeatureControl}

func goodAnswer(addr string) *wire.BrochureAnswer {
	return &wire.BrochureAnswer{
		Transport:                 "uv",
		Address:                   addr,
		TransportRegistrationIDs:  map[uint64]uint64{wire.ReplyConnection: replyID},
		TransportDomainDescriptor: "uv:*",
		ChannelRegistrationIDs:    map[string][]uint64{basic.Name: {basicID}},
		ChannelDeviceDescriptors:  map[string]map[device.Device]string{basic.Name: {device.CPU(): "any"}},
		ChannelForDevicePair:      map[wire.DevicePair]string{{Server: device.CPU(), Client: device.CPU()}: basic.Name},
	}
}

// attack is an open pipe between the victim and an attacker with bare
// connections.
type attack struct {
	pipe        *pipe.Pipe // the victim's end
	desc, reply *raw
	basic       *raw // nil without a common channel
	control     *raw // nil unless the attacker carries the marker
}

// conn finds a connection by its name in errors.
func (a *attack) conn(name string) *raw {
	return map[string]*raw{"descriptor": a.desc, "reply": a.reply, "channel basic": a.basic, "control": a.control}[name]
}

// roles are the two ways to open an attack.
var roles = map[string]func(t testing.TB, v *victim) *attack{
	"attacker dials":   dialVictim,
	"attacker listens": lureVictim,
}

// inBothRoles runs f on victims that were dialled and on victims that dial.
// One victim serves all calls of f in a role, its healthy pipe open all along.
func inBothRoles(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *attack), adjust ...func(*pipe.Options)) {
	asWhom(t, overTCP, roles, f, adjust...)
}

// asOneOfOurs is inBothRoles with attackers that carry the marker.
func asOneOfOurs(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *attack), adjust ...func(*pipe.Options)) {
	asWhom(t, overTCP, markedRoles, f, adjust...)
}

var markedRoles = map[string]func(t testing.TB, v *victim) *attack{
	"attacker dials": func(t testing.TB, v *victim) *attack {
		b := goodBrochure()
		b.Mark(marker)
		return dialVictimWith(t, v, b)
	},
	"attacker listens": func(t testing.TB, v *victim) *attack {
		return lureVictimWith(t, v, func(a *wire.BrochureAnswer) {
			a.Mark(marker)
			a.TransportRegistrationIDs[wire.ControlConnection] = controlID
		})
	},
}

// asWhom runs f for each way to open an attack A, at the same time. It comes last
// in a test.
func asWhom[A any](t *testing.T, over carrier, roles map[string]func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	for name, open := range roles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inRole(t, over, open, f, adjust...)
		})
	}
}

// byTurns is asWhom for what measures this process: nothing else runs meanwhile.
func byTurns[A any](t *testing.T, over carrier, roles map[string]func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	for name, open := range roles {
		t.Run(name, func(t *testing.T) { inRole(t, over, open, f, adjust...) })
	}
}

func inRole[A any](t *testing.T, over carrier, open func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	v := over.newVictim(t, adjust...)
	f(t, v, func(t testing.TB) A { return open(t, v) })
	v.quiet(t)
	v.alive(t)
}

// visit opens one connection to the victim's listener.
func (v *victim) visit(t testing.TB) *raw {
	t.Helper()
	return v.over.dial(t, strings.TrimPrefix(v.url(), "uv://"))
}

// visitWith opens a connection and sends these frames.
func (v *victim) visitWith(t testing.TB, frames ...[]byte) *raw {
	t.Helper()
	r := v.visit(t)
	for _, f := range frames {
		r.frame(f)
	}
	return r
}

// introduce goes as far as the victim's answer.
func (v *victim) introduce(t testing.TB, brochure *wire.Brochure) (*raw, *wire.BrochureAnswer) {
	t.Helper()
	first := v.visitWith(t, hello(), brochure.Append(nil))
	answer, err := wire.DecodeBrochureAnswer(first.read(), wire.Limits{})
	require.NoError(t, err)
	return first, answer
}

// dialVictim opens a pipe as a client.
func dialVictim(t testing.TB, v *victim) *attack { return dialVictimWith(t, v, goodBrochure()) }

func dialVictimWith(t testing.TB, v *victim, brochure *wire.Brochure) *attack {
	t.Helper()
	a := &attack{}
	a.connect(t, v, brochure)
	var err error
	a.pipe, err = v.listener.Accept(t.Context())
	require.NoError(t, err)
	return a
}

// connect opens all connections of a pipe.
func (a *attack) connect(t testing.TB, v *victim, brochure *wire.Brochure) {
	t.Helper()
	var answer *wire.BrochureAnswer
	a.desc, answer = v.introduce(t, brochure)
	a.connectFurther(t, v, answer)
}

// connectFurther opens the connections that an answer asks for.
func (a *attack) connectFurther(t testing.TB, v *victim, answer *wire.BrochureAnswer) {
	t.Helper()
	a.reply = v.visitWith(t, request(answer.TransportRegistrationIDs[wire.ReplyConnection]))
	for _, id := range answer.ChannelRegistrationIDs[basic.Name] {
		a.basic = v.visitWith(t, request(id))
	}
	if id, ok := answer.TransportRegistrationIDs[wire.ControlConnection]; ok {
		a.control = v.visitWith(t, request(id))
	}
}

// trap is a listener that plays the part of a pipe's.
type trap struct {
	*net.TCPListener
	t    testing.TB
	over carrier // that of whom it lures
}

func newTrap(t testing.TB) *trap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return &trap{TCPListener: l.(*net.TCPListener), t: t}
}

func (l *trap) url() string { return "uv://" + l.Addr().String() }

func (l *trap) take() *raw {
	l.t.Helper()
	c, err := l.Accept()
	require.NoError(l.t, err)
	return l.over.receive(l.t, c)
}

// prey takes a connection with the victim's greeting, ready for an answer.
func (l *trap) prey() *raw {
	l.t.Helper()
	first := l.take()
	packet, err := wire.DecodePacket(first.read(), wire.Limits{})
	require.NoError(l.t, err)
	require.Equal(l.t, wire.SpontaneousConnection{ContextName: "victim"}, packet)
	_, err = wire.DecodeBrochure(first.read(), wire.Limits{})
	require.NoError(l.t, err)
	return first
}

// dialled is what became of a Dial.
type dialled struct {
	pipe *pipe.Pipe
	err  error
}

// lure makes the victim dial the trap.
func (l *trap) lure(v *victim) <-chan dialled {
	l.over = v.over
	out := make(chan dialled, 1)
	go func() {
		p, err := v.Dial(l.t.Context(), l.url())
		out <- dialled{p, err}
	}()
	return out
}

// lureVictim opens a pipe as a listener.
func lureVictim(t testing.TB, v *victim) *attack {
	return lureVictimWith(t, v, func(*wire.BrochureAnswer) {})
}

// lureVictimWith changes the answer, which may ask for a control connection.
func lureVictimWith(t testing.TB, v *victim, change func(*wire.BrochureAnswer)) *attack {
	t.Helper()
	l := newTrap(t)
	result := l.lure(v)
	a := &attack{desc: l.prey()}
	answer := goodAnswer(l.Addr().String())
	change(answer)
	a.desc.frame(answer.Append(nil))
	byID := map[uint64]**raw{replyID: &a.reply, basicID: &a.basic, controlID: &a.control}
	for range len(answer.TransportRegistrationIDs) + len(answer.ChannelRegistrationIDs) {
		c := l.take()
		packet, err := wire.DecodePacket(c.read(), wire.Limits{})
		require.NoError(t, err)
		id := packet.(wire.RequestedConnection).RegistrationID
		require.Contains(t, byID, id)
		*byID[id] = c
	}
	d := <-result
	require.NoError(t, d.err)
	a.pipe = d.pipe
	return a
}

// hangUp closes all connections of the attacker.
func (a *attack) hangUp() {
	for _, c := range []*raw{a.desc, a.reply, a.basic, a.control} {
		if c != nil {
			c.Close()
		}
	}
}
