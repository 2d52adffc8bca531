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

// badAnswers are well-formed answers that no honest listener sends.
var badAnswers = map[string]func(a *wire.BrochureAnswer){
	"a transport that was not offered": func(a *wire.BrochureAnswer) { a.Transport = "shm" },
	"a transport without name":         func(a *wire.BrochureAnswer) { a.Transport = "" },
	"another domain":                   func(a *wire.BrochureAnswer) { a.TransportDomainDescriptor = "uv:elsewhere" },
	"no id for the reply connection":   func(a *wire.BrochureAnswer) { a.TransportRegistrationIDs = nil },
	"an id for the descriptors only":   func(a *wire.BrochureAnswer) { a.TransportRegistrationIDs = map[uint64]uint64{0: 1} },
	"a channel that was not offered": func(a *wire.BrochureAnswer) {
		a.ChannelForDevicePair[wire.DevicePair{Server: device.CPU(), Client: device.CPU()}] = "warp"
	},
	"a device that the victim does not have": func(a *wire.BrochureAnswer) {
		a.ChannelForDevicePair[wire.DevicePair{Server: device.CPU(), Client: device.Device{Kind: "cuda"}}] = basic.Name
	},
	"an unknown device of the listener": func(a *wire.BrochureAnswer) {
		a.ChannelForDevicePair[wire.DevicePair{Server: device.Device{Kind: "cuda"}, Client: device.CPU()}] = basic.Name
	},
	"channel texts that differ": func(a *wire.BrochureAnswer) {
		a.ChannelDeviceDescriptors[basic.Name] = map[device.Device]string{device.CPU(): "other"}
	},
	"no channel texts":          func(a *wire.BrochureAnswer) { a.ChannelDeviceDescriptors = nil },
	"no ids for the channel":    func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs = nil },
	"too few ids":               func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = []uint64{} },
	"an id too many":            func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = []uint64{1, 2} },
	"thousands of ids too many": func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = make([]uint64, 4000) },
	"more ids than the limit":   func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs[basic.Name] = make([]uint64, 30000) },
	"an endless address":        func(a *wire.BrochureAnswer) { a.Address = strings.Repeat("1", 200_000) },
	"an endless transport name": func(a *wire.BrochureAnswer) { a.Transport = strings.Repeat("u", 200_000) },
}

func TestBadAnswers(t *testing.T) {
	v := newVictim(t)
	for name, change := range badAnswers {
		t.Run(name, func(t *testing.T) {
			l := newRogueListener(t)
			d := dialWithAnswer(v, l, change)
			requireDialFailed(t, l, d, pipe.ErrProtocol)
			require.Less(t, len(d.err.Error()), 1000, "a peer's text in errors must be truncated")
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// dialWithAnswer makes the victim dial l, sends it a valid answer that change has modified, and
// returns the result of the victim's Dial.
func dialWithAnswer(v *victim, l *rogueListener, change func(a *wire.BrochureAnswer)) dialResult {
	result := l.dialFrom(v)
	first := l.acceptOffer()
	a := goodAnswer(l.Addr().String())
	change(a)
	first.frame(a.Append(nil))
	return <-result
}

// TestAnswerWithBadAddress checks that Dial fails with a suitable error if the listener's answer
// names an address to which further connections cannot be opened.
func TestAnswerWithBadAddress(t *testing.T) {
	taken := overTCP.dial(t, newRogueListener(t).Addr().String()) // its port is in use, but not for listening
	addresses := map[string]func(error) bool{
		taken.local():               func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
		"":                          isAddrError,
		"127.0.0.1:65536":           isAddrError,
		"127.0.0.1:-1":              isAddrError,
		"127.0.0.1:80:80":           isAddrError,
		"uv://127.0.0.1:80":         isAddrError,
		"../../etc/passwd":          isAddrError,
		"127.0.0.1\x00:80":          isAddrError,
		"127.0.0.1:0":               isAddrError,
		"[::1%no-such-interface]:1": isDialError,
		"255.255.255.255:1":         isDialError,
	}
	v := newVictim(t)
	for addr, want := range addresses {
		t.Run(addr, func(t *testing.T) {
			l := newRogueListener(t)
			d := dialWithAnswer(v, l, func(a *wire.BrochureAnswer) { a.Address = addr })
			requireDialFailed(t, l, d)
			require.True(t, want(d.err), "%v", d.err)
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

func isAddrError(err error) bool {
	_, ok := errors.AsType[*uv.AddrError](err)
	return ok
}

func isDialError(err error) bool {
	_, ok := errors.AsType[*uv.DialError](err)
	return ok
}

// TestAnswerWithMoreThanNeeded checks that Dial ignores unknown entries in the listener's answer,
// as TensorPipe does, and that the pipe works.
func TestAnswerWithMoreThanNeeded(t *testing.T) {
	v := newVictim(t)
	l := newRogueListener(t)
	result := l.dialFrom(v)
	a := &attack{desc: l.acceptOffer()}
	answer := goodAnswer(l.Addr().String())
	answer.TransportRegistrationIDs[99] = 99
	answer.ChannelRegistrationIDs["warp"] = []uint64{7, 8, 9}
	answer.ChannelDeviceDescriptors["warp"] = map[device.Device]string{{Kind: "npu"}: "?"}
	answer.ChannelRegistrationIDs[basic.Name] = []uint64{replyID} // the same id twice
	a.desc.frame(answer.Append(nil))
	a.reply, a.basic = l.acceptRaw(), l.acceptRaw()
	require.Equal(t, request(replyID), a.reply.read())
	require.Equal(t, request(replyID), a.basic.read())
	d := <-result
	require.NoError(t, d.err)
	a.pipe = d.pipe
	exchangePayload(t, a)
	a.closeOrderly(t)
	v.requireIdle(t)
}

// TestListenerClosesDuringHandshake checks that the victim's Dial fails, and affects no other pipe,
// if the listener ends the connection at any step of the handshake, in any way.
func TestListenerClosesDuringHandshake(t *testing.T) {
	v := newVictim(t)
	steps := map[string]func(l *rogueListener) *raw{
		"before the greeting": func(l *rogueListener) *raw { return l.acceptRaw() },
		"before the answer":   func(l *rogueListener) *raw { return l.acceptOffer() },
		"within the answer's length": func(l *rogueListener) *raw {
			first := l.acceptOffer()
			first.send([]byte{100, 0, 0})
			return first
		},
		"within the answer": func(l *rogueListener) *raw {
			first := l.acceptOffer()
			first.header(100)
			first.send([]byte{0xb9, 7})
			return first
		},
	}
	for name, step := range steps {
		for ending, endConn := range connEndings {
			t.Run(name+", "+ending, func(t *testing.T) {
				l := newRogueListener(t)
				result := l.dialFrom(v)
				endConn(step(l))
				d := <-result
				requireError(t, d.err, "")
				require.True(t, errors.Is(d.err, pipe.ErrPeerClosed) || errors.Is(d.err, pipe.ErrPeerLost) ||
					isDialError(d.err), "%v", d.err) // the reset may come before connecting is over
				v.requireHealthy(t)
			})
		}
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// connEndings are the ways to end a connection.
var connEndings = map[string]func(*raw){
	"closing":      func(r *raw) { r.Close() },
	"resetting":    func(r *raw) { r.reset() },
	"half-closing": func(r *raw) { _ = r.CloseWrite() },
}
