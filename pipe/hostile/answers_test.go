package hostile_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// badAnswers are answers that no honest listener gives, well-formed though
// they are.
var badAnswers = map[string]func(a *wire.BrochureAnswer){
	"a transport that was not offered": func(a *wire.BrochureAnswer) { a.Transport = "shm" },
	"a transport without name":         func(a *wire.BrochureAnswer) { a.Transport = "" },
	"another domain":                   func(a *wire.BrochureAnswer) { a.TransportDomainDescriptor = "uv:elsewhere" },
	"no id for the reply connection":   func(a *wire.BrochureAnswer) { a.TransportRegistrationIDs = nil },
	"an id for the descriptors only":   func(a *wire.BrochureAnswer) { a.TransportRegistrationIDs = map[uint64]uint64{0: 1} },
	"a channel that was not offered": func(a *wire.BrochureAnswer) {
		a.ChannelForDevicePair[wire.DevicePair{Server: device.CPU(), Client: device.CPU()}] = "warp"
	},
	"a device that the victim has not": func(a *wire.BrochureAnswer) {
		a.ChannelForDevicePair[wire.DevicePair{Server: device.CPU(), Client: device.Device{Kind: "cuda"}}] = basic.Name
	},
	"a device of its own unheard of": func(a *wire.BrochureAnswer) {
		a.ChannelForDevicePair[wire.DevicePair{Server: device.Device{Kind: "cuda"}, Client: device.CPU()}] = basic.Name
	},
	"channel texts that differ": func(a *wire.BrochureAnswer) {
		a.ChannelDeviceDescriptors[basic.Name] = map[device.Device]string{device.CPU(): "other"}
	},
	"no channel texts":           func(a *wire.BrochureAnswer) { a.ChannelDeviceDescriptors = nil },
	"no ids for the channel":     func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs = nil },
	"too few ids":                func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = []uint64{} },
	"an id too many":             func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = []uint64{1, 2} },
	"thousands of ids too many":  func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = make([]uint64, 4000) },
	"more ids than anyone needs": func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = make([]uint64, 30000) },
	"an endless address":         func(a *wire.BrochureAnswer) { a.Address = strings.Repeat("1", 200_000) },
	"an endless transport name":  func(a *wire.BrochureAnswer) { a.Transport = strings.Repeat("u", 200_000) },
}

func TestBadAnswers(t *testing.T) {
	v := newVictim(t)
	for name, spoil := range badAnswers {
		t.Run(name, func(t *testing.T) {
			l := newTrap(t)
			d := answered(v, l, spoil)
			requireDialFailed(t, l, d, pipe.ErrProtocol)
			require.Less(t, len(d.err.Error()), 1000, "a peer's text must not flood errors")
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

// answered dials the trap, which gives a spoilt answer, and returns when the
// dial does.
func answered(v *victim, l *trap, spoil func(a *wire.BrochureAnswer)) dialled {
	result := l.lure(v)
	first := l.prey()
	a := goodAnswer(l.Addr().String())
	spoil(a)
	first.frame(a.Append(nil))
	return <-result
}

// The answer sends the victim somewhere else.
func TestAnswerWithBadAddress(t *testing.T) {
	taken := overTCP.dial(t, newTrap(t).Addr().String()) // nobody else has its port, and nobody listens there
	addresses := map[string]func(error) bool{
		taken.local():               func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
		"":                          isAddrError,
		"127.0.0.1:65536":           isAddrError,
		"127.0.0.1:-1":              isAddrError,
		"127.0.0.1:80:80":           isAddrError,
		"uv://127.0.0.1:80":         isAddrError,
		"../../etc/passwd":          isAddrError,
		"127.0.0.1\x00:80":          isAddrError,
		"127.0.0.1:0":               isDialError,
		"[::1%no-such-interface]:1": isDialError,
		"255.255.255.255:1":         isDialError,
	}
	v := newVictim(t)
	for addr, want := range addresses {
		t.Run(addr, func(t *testing.T) {
			l := newTrap(t)
			d := answered(v, l, func(a *wire.BrochureAnswer) { a.Address = addr })
			requireDialFailed(t, l, d)
			require.True(t, want(d.err), "%v", d.err)
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

func isAddrError(err error) bool {
	_, ok := errors.AsType[*uv.AddrError](err)
	return ok
}

func isDialError(err error) bool {
	_, ok := errors.AsType[*uv.DialError](err)
	return ok
}

// Things in an answer that upstream ignores, and so do we.
func TestAnswerWithMoreThanNeeded(t *testing.T) {
	v := newVictim(t)
	l := newTrap(t)
	result := l.lure(v)
	a := &attack{desc: l.prey()}
	answer := goodAnswer(l.Addr().String())
	answer.TransportRegistrationIDs[99] = 99
	answer.ChannelRegistrationIDs["warp"] = []uint64{7, 8, 9}
	answer.ChannelDeviceDescriptors["warp"] = map[device.Device]string{{Kind: "npu"}: "?"}
	answer.ChannelRegistrationIDs[basic.Name] = []uint64{replyID} // the same id twice
	a.desc.frame(answer.Append(nil))
	a.reply, a.basic = l.take(), l.take()
	require.Equal(t, request(replyID), a.reply.read())
	require.Equal(t, request(replyID), a.basic.read())
	d := <-result
	require.NoError(t, d.err)
	a.pipe = d.pipe
	exchangePayload(t, a)
	a.finish(t)
	v.quiet(t)
}

// The listener hangs up instead of going on, at each step of the handshake.
func TestListenerHangsUp(t *testing.T) {
	v := newVictim(t)
	steps := map[string]func(l *trap) *raw{
		"before the greeting": func(l *trap) *raw { return l.take() },
		"before the answer":   func(l *trap) *raw { return l.prey() },
		"within the answer's length": func(l *trap) *raw {
			first := l.prey()
			first.send([]byte{100, 0, 0})
			return first
		},
		"within the answer": func(l *trap) *raw {
			first := l.prey()
			first.header(100)
			first.send([]byte{0xb9, 7})
			return first
		},
	}
	for name, step := range steps {
		for how, leave := range departures {
			t.Run(name+", "+how, func(t *testing.T) {
				l := newTrap(t)
				result := l.lure(v)
				leave(step(l))
				d := <-result
				requireError(t, d.err, "")
				require.True(t, errors.Is(d.err, pipe.ErrPeerClosed) || errors.Is(d.err, pipe.ErrPeerLost) ||
					isDialError(d.err), "%v", d.err) // the reset may come before connecting is over
				v.unharmed(t)
			})
		}
	}
	v.quiet(t)
	v.alive(t)
}

// departures are ways to go.
var departures = map[string]func(*raw){
	"closing":      func(r *raw) { r.Close() },
	"resetting":    func(r *raw) { r.reset() },
	"half-closing": func(r *raw) { _ = r.CloseWrite() },
}
