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

// The following functions return the messages of an honest handshake, which tests modify.

func hello() []byte { return wire.SpontaneousConnection{ContextName: "attacker"}.Append(nil) }

func request(id uint64) []byte { return wire.RequestedConnection{RegistrationID: id}.Append(nil) }

func goodBrochure() *wire.Brochure {
	return &wire.Brochure{
		TransportDomainDescriptors: map[string]string{"uv": "uv:*"},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{basic.Name: {device.CPU(): "any"}},
	}
}

// Registration ids in the attacker's answer as a listener.
const (
	replyID   = 10
	basicID   = 11
	controlID = 12
)

// marker announces the extensions of this implementation in the compatible dialect.
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

// attack is an open pipe between the victim and an attacker with raw connections, in the compatible
// dialect.
type attack struct {
	pipe        *pipe.Pipe // the victim's end
	desc, reply *raw
	basic       *raw // nil without a common channel
	control     *raw // nil unless the attacker carries the marker
}

// conn returns the attacker's connection that errors of the pipe call by the given name, such as
// "descriptor". It returns nil for a connection that the pipe does not have, and for an unknown
// name.
func (a *attack) conn(name string) *raw {
	return map[string]*raw{"descriptor": a.desc, "reply": a.reply, "channel basic": a.basic, "control": a.control}[name]
}

// roles are the two ways to open an attack.
var roles = map[string]func(t testing.TB, v *victim) *attack{
	"attacker dials":   dialVictim,
	"attacker listens": acceptVictim,
}

// inBothRoles runs f twice as parallel subtests, with attackers that dial and with attackers that
// listen, over TCP. Each call of open opens a new pipe between an attacker and the victim v. One
// victim, with its healthy pipe open and options changed by adjust, serves all of them in a role. A
// test must call inBothRoles last.
func inBothRoles(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *attack), adjust ...func(*pipe.Options)) {
	inRoles(t, overTCP, roles, f, adjust...)
}

// inBothMarkedRoles runs f as inBothRoles does, but its attackers claim to be ends of this library,
// so that their pipes have a control connection.
func inBothMarkedRoles(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *attack), adjust ...func(*pipe.Options)) {
	inRoles(t, overTCP, markedRoles, f, adjust...)
}

var markedRoles = map[string]func(t testing.TB, v *victim) *attack{
	"attacker dials": func(t testing.TB, v *victim) *attack {
		b := goodBrochure()
		b.Mark(marker)
		return dialVictimWith(t, v, b)
	},
	"attacker listens": func(t testing.TB, v *victim) *attack {
		return acceptVictimWith(t, v, func(a *wire.BrochureAnswer) {
			a.Mark(marker)
			a.TransportRegistrationIDs[wire.ControlConnection] = controlID
		})
	},
}

// inRoles runs f as parallel subtests, one for each role, a way to open an attack A, with a new
// victim over the given network. f gets a function open that opens a new attack in that role.
// Parallel subtests begin when the test returns, so a test must call inRoles last.
func inRoles[A any](t *testing.T, over network, roles map[string]func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	for name, open := range roles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runInRole(t, over, open, f, adjust...)
		})
	}
}

// inRolesSerially runs f for each role as inRoles does, but one after the other. It is for tests
// that measure this process.
func inRolesSerially[A any](t *testing.T, over network, roles map[string]func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	for name, open := range roles {
		t.Run(name, func(t *testing.T) { runInRole(t, over, open, f, adjust...) })
	}
}

func runInRole[A any](t *testing.T, over network, open func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	v := over.newVictim(t, adjust...)
	f(t, v, func(t testing.TB) A { return open(t, v) })
	v.requireIdle(t)
	v.requireServing(t)
}

// dialRaw opens one connection to the victim's listener and returns the attacker's end. It sends
// nothing but the handshake of TLS, if the network has that.
func (v *victim) dialRaw(t testing.TB) *raw {
	t.Helper()
	return v.over.dial(t, strings.TrimPrefix(v.url(), "uv://"))
}

// dialRawWith opens one connection to the victim's listener, sends frames on it, and returns the
// attacker's end.
func (v *victim) dialRawWith(t testing.TB, frames ...[]byte) *raw {
	t.Helper()
	r := v.dialRaw(t)
	for _, f := range frames {
		r.frame(f)
	}
	return r
}

// sendOffer sends brochure as a client's offer on a new connection, waits for the victim's answer,
// and returns the connection and the answer.
func (v *victim) sendOffer(t testing.TB, brochure *wire.Brochure) (*raw, *wire.BrochureAnswer) {
	t.Helper()
	first := v.dialRawWith(t, hello(), brochure.Append(nil))
	answer, err := wire.DecodeBrochureAnswer(first.read(), wire.Limits{})
	require.NoError(t, err)
	return first, answer
}

// dialVictim opens a pipe to the victim as a client with a valid offer, and returns it as an
// attack.
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

// connect sends brochure as a client's offer to the victim, opens all connections of the pipe, and
// stores them in a. It does not wait for the victim to accept the pipe.
func (a *attack) connect(t testing.TB, v *victim, brochure *wire.Brochure) {
	t.Helper()
	var answer *wire.BrochureAnswer
	a.desc, answer = v.sendOffer(t, brochure)
	a.connectFurther(t, v, answer)
}

// connectFurther opens the further connections that the victim's answer asks a client for, and
// stores them in a.
func (a *attack) connectFurther(t testing.TB, v *victim, answer *wire.BrochureAnswer) {
	t.Helper()
	a.reply = v.dialRawWith(t, request(answer.TransportRegistrationIDs[wire.ReplyConnection]))
	for _, id := range answer.ChannelRegistrationIDs[basic.Name] {
		a.basic = v.dialRawWith(t, request(id))
	}
	if id, ok := answer.TransportRegistrationIDs[wire.ControlConnection]; ok {
		a.control = v.dialRawWith(t, request(id))
	}
}

// rogueListener is an attacker's listener.
type rogueListener struct {
	*net.TCPListener
	t    testing.TB
	over network // that of the victim
}

func newRogueListener(t testing.TB) *rogueListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return &rogueListener{TCPListener: l.(*net.TCPListener), t: t}
}

func (l *rogueListener) url() string { return "uv://" + l.Addr().String() }

func (l *rogueListener) acceptRaw() *raw {
	l.t.Helper()
	c, err := l.Accept()
	require.NoError(l.t, err)
	return l.over.receive(l.t, c)
}

// acceptOffer accepts a connection, reads the victim's first packet and offer, and returns the
// connection. It fails the test if they are not valid.
func (l *rogueListener) acceptOffer() *raw {
	l.t.Helper()
	first := l.acceptRaw()
	packet, err := wire.DecodePacket(first.read(), wire.Limits{})
	require.NoError(l.t, err)
	require.Equal(l.t, wire.SpontaneousConnection{ContextName: "victim"}, packet)
	_, err = wire.DecodeBrochure(first.read(), wire.Limits{})
	require.NoError(l.t, err)
	return first
}

// dialResult is the result of Dial.
type dialResult struct {
	pipe *pipe.Pipe
	err  error
}

// dialFrom makes the victim dial the listener, on a new goroutine. The returned Go channel receives
// the result of that Dial.
func (l *rogueListener) dialFrom(v *victim) <-chan dialResult {
	l.over = v.over
	out := make(chan dialResult, 1)
	go func() {
		p, err := v.Dial(l.t.Context(), l.url())
		out <- dialResult{p, err}
	}()
	return out
}

// acceptVictim opens a pipe with the victim as a listener with a valid answer, and returns it as an
// attack.
func acceptVictim(t testing.TB, v *victim) *attack {
	return acceptVictimWith(t, v, func(*wire.BrochureAnswer) {})
}

// acceptVictimWith opens a pipe with the victim as a listener, after change has modified its valid
// answer, and returns it as an attack. The modified answer must still be valid; it may ask for a
// control connection.
func acceptVictimWith(t testing.TB, v *victim, change func(*wire.BrochureAnswer)) *attack {
	t.Helper()
	l := newRogueListener(t)
	result := l.dialFrom(v)
	a := &attack{desc: l.acceptOffer()}
	answer := goodAnswer(l.Addr().String())
	change(answer)
	a.desc.frame(answer.Append(nil))
	byID := map[uint64]**raw{replyID: &a.reply, basicID: &a.basic, controlID: &a.control}
	for range len(answer.TransportRegistrationIDs) + len(answer.ChannelRegistrationIDs) {
		c := l.acceptRaw()
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

// closeConns closes all connections of the attacker's end of the pipe.
func (a *attack) closeConns() {
	for _, c := range []*raw{a.desc, a.reply, a.basic, a.control} {
		if c != nil {
			c.Close()
		}
	}
}
