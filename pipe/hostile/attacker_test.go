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

// conn returns a connection by its name in errors.
func (a *attack) conn(name string) *raw {
	return map[string]*raw{"descriptor": a.desc, "reply": a.reply, "channel basic": a.basic, "control": a.control}[name]
}

// roles are the two ways to open an attack.
var roles = map[string]func(t testing.TB, v *victim) *attack{
	"attacker dials":   dialVictim,
	"attacker listens": acceptVictim,
}

// inBothRoles runs f for attackers that dial and for attackers that listen. One victim serves all
// calls of f in a role, with its healthy pipe open.
func inBothRoles(t *testing.T, f func(t *testing.T, v *victim, open func(testing.TB) *attack), adjust ...func(*pipe.Options)) {
	inRoles(t, overTCP, roles, f, adjust...)
}

// inBothMarkedRoles is inBothRoles with attackers that send the marker.
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

// inRoles runs f in parallel for each way to open an attack A. A test must call it last.
func inRoles[A any](t *testing.T, over network, roles map[string]func(t testing.TB, v *victim) A,
	f func(t *testing.T, v *victim, open func(testing.TB) A), adjust ...func(*pipe.Options)) {
	for name, open := range roles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runInRole(t, over, open, f, adjust...)
		})
	}
}

// inRolesSerially is inRoles for tests that measure this process: nothing runs in parallel.
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

// dialRaw opens one connection to the victim's listener.
func (v *victim) dialRaw(t testing.TB) *raw {
	t.Helper()
	return v.over.dial(t, strings.TrimPrefix(v.url(), "uv://"))
}

// dialRawWith opens a connection and sends these frames.
func (v *victim) dialRawWith(t testing.TB, frames ...[]byte) *raw {
	t.Helper()
	r := v.dialRaw(t)
	for _, f := range frames {
		r.frame(f)
	}
	return r
}

// sendOffer sends an offer on a new connection and returns the victim's answer.
func (v *victim) sendOffer(t testing.TB, brochure *wire.Brochure) (*raw, *wire.BrochureAnswer) {
	t.Helper()
	first := v.dialRawWith(t, hello(), brochure.Append(nil))
	answer, err := wire.DecodeBrochureAnswer(first.read(), wire.Limits{})
	require.NoError(t, err)
	return first, answer
}

// dialVictim opens an attack as a client.
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
	a.desc, answer = v.sendOffer(t, brochure)
	a.connectFurther(t, v, answer)
}

// connectFurther opens the connections that an answer requires.
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

// acceptOffer accepts a connection and reads the victim's offer.
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

// dialFrom makes the victim dial the listener.
func (l *rogueListener) dialFrom(v *victim) <-chan dialResult {
	l.over = v.over
	out := make(chan dialResult, 1)
	go func() {
		p, err := v.Dial(l.t.Context(), l.url())
		out <- dialResult{p, err}
	}()
	return out
}

// acceptVictim opens an attack as a listener.
func acceptVictim(t testing.TB, v *victim) *attack {
	return acceptVictimWith(t, v, func(*wire.BrochureAnswer) {})
}

// acceptVictimWith is acceptVictim with a changed answer, which may require a control connection.
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

// closeConns closes all connections of the attacker.
func (a *attack) closeConns() {
	for _, c := range []*raw{a.desc, a.reply, a.basic, a.control} {
		if c != nil {
			c.Close()
		}
	}
}
