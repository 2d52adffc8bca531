package hostile_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// patience ends what hangs. It is no measure of how fast anything should be.
const patience = time.Minute

// shortly is a timeout for what tests wait to run out, and soon one that must
// not run out before a handshake has got as far as the test wants, on a busy
// machine and with TLS too.
const (
	shortly = 150 * time.Millisecond
	soon    = 3 * time.Second
)

// victim is a context under attack, and a healthy pipe on it that must not
// notice.
type victim struct {
	*pipe.Context
	listener *pipe.Listener
	log      *recorder
	over     carrier    // of this victim and its attackers
	here     *pipe.Pipe // the healthy pipe, the victim's end
	there    *pipe.Pipe // and its other end, in another context
	rounds   int
}

// newVictim makes a context that listens, with its healthy pipe. Both contexts
// are closed with the test.
func newVictim(t testing.TB, adjust ...func(*pipe.Options)) *victim {
	t.Helper()
	return overTCP.newVictim(t, adjust...)
}

func (over carrier) newVictim(t testing.TB, adjust ...func(*pipe.Options)) *victim {
	t.Helper()
	v := &victim{log: &recorder{}, over: over}
	o := over.options("victim")
	o.Logger = v.log.logger()
	for _, f := range adjust {
		f(&o)
	}
	v.Context = newContext(t, o)
	var err error
	v.listener, err = v.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	v.there = v.welcome(t, newContext(t, over.options("bystander")))
	v.here = v.accept(t)
	_, secure := v.here.TLS()
	require.Equal(t, over.config != nil, secure)
	v.unharmed(t)
	return v
}

func options(name string) pipe.Options { return overTCP.options(name) }

func (over carrier) options(name string) pipe.Options {
	return pipe.Options{
		Dialect:    pipe.DialectAuto,
		Name:       name,
		Transports: []pipe.TransportEntry{{Name: "uv", Priority: 0, Transport: over.transport()}},
		Channels:   []pipe.ChannelEntry{{Name: basic.Name, Priority: 1000, Factory: basic.New()}},
	}
}

// hurried is an option for victims whose handshakes are expected to time out.
func hurried(o *pipe.Options) { o.HandshakeTimeout = soon }

// impatient is one for victims that wait in vain for a peer to close.
func impatient(o *pipe.Options) { o.CloseTimeout = shortly }

func newContext(t testing.TB, o pipe.Options) *pipe.Context {
	t.Helper()
	c, err := pipe.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// welcome opens a pipe from an honest context to the victim. On a busy machine
// a hurried victim may have given up meanwhile; an honest peer tries again.
func (v *victim) welcome(t testing.TB, honest *pipe.Context) *pipe.Pipe {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		p, err := honest.Dial(ctx, v.url())
		if err == nil {
			err = p.Write(ctx, &pipe.Message{Metadata: []byte("hello")})
		}
		if err == nil {
			return p
		}
		require.NoError(t, ctx.Err(), "no healthy pipe: %v", err)
	}
}

func (v *victim) url() string { return v.listener.URLs()[0] }

// accept takes the next pipe of an honest peer, which has said hello.
func (v *victim) accept(t testing.TB) *pipe.Pipe {
	t.Helper()
	for {
		p, err := v.listener.Accept(t.Context())
		require.NoError(t, err)
		in, err := p.Next(t.Context())
		if err != nil {
			continue // its peer gave up before the victim did
		}
		require.NoError(t, in.Read(t.Context(), pipe.Allocation{}))
		return p
	}
}

// unharmed exchanges messages over the healthy pipe.
func (v *victim) unharmed(t testing.TB) {
	t.Helper()
	v.rounds++
	for _, ends := range [][2]*pipe.Pipe{{v.here, v.there}, {v.there, v.here}} {
		m := message(v.rounds)
		op := ends[0].WriteAsync(t.Context(), m)
		in, err := ends[1].Next(t.Context())
		require.NoError(t, err)
		a := pipe.NewAllocation(in.Descriptor())
		require.NoError(t, in.Read(t.Context(), a))
		require.NoError(t, op.Wait(t.Context()))
		require.True(t, bytes.Equal(m.Payloads[0].Data, a.Payloads[0]), "payload of the healthy pipe")
		want, _ := m.Tensors[0].Buffer.Contiguous()
		got, _ := a.Tensors[0].Contiguous()
		require.True(t, bytes.Equal(want, got), "tensor of the healthy pipe")
	}
}

// alive dials the victim once more, as a newcomer after an attack.
func (v *victim) alive(t testing.TB) {
	t.Helper()
	there := v.welcome(t, newContext(t, v.over.options("newcomer")))
	here := v.accept(t)
	closed := make(chan error, 1)
	go func() { closed <- there.Close() }()
	_, err := here.Next(t.Context()) // an impatient victim would not wait for it
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.NoError(t, here.Close())
	require.NoError(t, <-closed)
	v.unharmed(t)
}

// quiet waits until no handshake is in progress and only the healthy pipe is
// open.
func (v *victim) quiet(t testing.TB) {
	t.Helper()
	v.settled(t)
	v.unharmed(t)
}

func (v *victim) settled(t testing.TB) {
	t.Helper()
	await(t, func() bool {
		s := v.Stats()
		return s.HandshakesInProgress == 0 && s.PipesOpen == 1
	}, "handshakes and pipes of attackers must end")
}

// await waits for what only a counter tells.
func await(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, time.Millisecond, what)
}

// cancelled is a context that has ended.
func cancelled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// looked is a context that tells when a call first looks at its end, which is when it
// waits, or begins what an end can break off.
type looked struct {
	context.Context
	once sync.Once
	at   func()
}

func (c *looked) Done() <-chan struct{} {
	c.once.Do(c.at)
	return c.Context.Done()
}

// message is one with a payload and two tensors, of which one goes where the
// receiver wants it.
func message(seed int) *pipe.Message {
	return &pipe.Message{
		Metadata: []byte("healthy"),
		Payloads: []pipe.Payload{{Data: bytes.Repeat([]byte{byte(seed)}, 100+seed%7)}},
		Tensors: []pipe.Tensor{
			{Buffer: device.Bytes(bytes.Repeat([]byte{byte(seed + 1)}, 1000)), TargetDevice: device.CPU()},
			{Buffer: device.Bytes(bytes.Repeat([]byte{byte(seed + 2)}, 200))},
		},
	}
}

// requireBroken checks that a pipe of the victim is down for these reasons,
// and that the error says who did it and on which connection.
func requireBroken(t testing.TB, p *pipe.Pipe, conn string, reasons ...error) {
	t.Helper()
	drop(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := p.Next(ctx)
	requireError(t, err, conn, reasons...)
	requireError(t, p.Err(), conn, reasons...)
	requireError(t, p.Write(ctx, &pipe.Message{}), conn, reasons...)
	select {
	case <-p.Done():
	case <-ctx.Done():
		require.Fail(t, "the pipe never ended")
	}
	require.NoError(t, p.Close(), "closing what is broken")
}

// drop discards messages that came before the one that broke the pipe.
func drop(t testing.TB, p *pipe.Pipe) {
	t.Helper()
	for {
		in, err := p.Next(t.Context())
		if err != nil {
			return
		}
		_ = in.Discard(t.Context()) // it may be the one that broke the pipe
	}
}

// requireError checks a call's error: its reasons, and that it names the peer
// and the connection.
func requireError(t testing.TB, err error, conn string, reasons ...error) {
	t.Helper()
	require.Error(t, err)
	for _, reason := range reasons {
		require.ErrorIs(t, err, reason)
	}
	e, ok := errors.AsType[*pipe.Error](err)
	require.True(t, ok, "%T: %v", err, err)
	require.Contains(t, e.Peer, "127.0.0.1:", "the peer's address in %v", err)
	require.Equal(t, conn, e.Conn, "the connection in %v", err)
}
