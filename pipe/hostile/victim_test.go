package hostile_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// testTimeout ends operations that hang. It says nothing about how long they should take.
const testTimeout = time.Minute

// shortTimeout is for timeouts that tests wait for. handshakeTimeout must not expire before
// a handshake has reached the step that a test needs, also on a busy machine and with TLS.
const (
	shortTimeout     = 150 * time.Millisecond
	handshakeTimeout = 3 * time.Second
)

// victim is a context under attack, with a healthy pipe that must not be affected.
type victim struct {
	*pipe.Context
	listener    *pipe.Listener
	log         *logRecorder
	over        network    // that the victim and its attackers use
	healthy     *pipe.Pipe // the victim's end of the healthy pipe
	healthyPeer *pipe.Pipe // its other end, in another context
	rounds      int
}

// newVictim returns a victim over TCP: a context under attack, which listens and has a healthy pipe
// to an honest peer. adjust changes its options. It is closed at the end of the test.
func newVictim(t testing.TB, adjust ...func(*pipe.Options)) *victim {
	t.Helper()
	return overTCP.newVictim(t, adjust...)
}

func (over network) newVictim(t testing.TB, adjust ...func(*pipe.Options)) *victim {
	t.Helper()
	v := &victim{log: &logRecorder{}, over: over}
	o := over.options("victim")
	o.Logger = v.log.logger()
	for _, f := range adjust {
		f(&o)
	}
	v.Context = newContext(t, o)
	var err error
	v.listener, err = v.Listen(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	v.healthyPeer = v.connectHonest(t, newContext(t, over.options("bystander")))
	v.healthy = v.accept(t)
	_, secure := v.healthy.TLS()
	require.Equal(t, over.config != nil, secure)
	v.requireHealthy(t)
	return v
}

func options(name string) pipe.Options { return overTCP.options(name) }

func (over network) options(name string) pipe.Options {
	return pipe.Options{
		Dialect:    pipe.DialectAuto,
		Name:       name,
		Transports: []pipe.TransportEntry{{Name: "uv", Priority: 0, Transport: over.transport()}},
		Channels:   []pipe.ChannelEntry{{Name: basic.Name, Priority: 1000, Factory: basic.New()}},
	}
}

// shortHandshakeTimeout sets a short HandshakeTimeout, for victims whose handshakes are expected to
// time out.
func shortHandshakeTimeout(o *pipe.Options) { o.HandshakeTimeout = handshakeTimeout }

// shortCloseTimeout sets a short CloseTimeout, for victims whose peers never close.
func shortCloseTimeout(o *pipe.Options) { o.CloseTimeout = shortTimeout }

func newContext(t testing.TB, o pipe.Options) *pipe.Context {
	t.Helper()
	c, err := pipe.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// connectHonest opens a pipe from the context honest to the victim, writes a first message, and
// returns honest's end. It tries again after a failure, since on a busy machine the victim's
// handshake may time out.
func (v *victim) connectHonest(t testing.TB, honest *pipe.Context) *pipe.Pipe {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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

// accept returns the victim's end of the next pipe that connectHonest has opened, after it has read
// the first message. It skips pipes that have failed before.
func (v *victim) accept(t testing.TB) *pipe.Pipe {
	t.Helper()
	for {
		p, err := v.listener.Accept(t.Context())
		require.NoError(t, err)
		in, err := p.Next(t.Context())
		if err != nil {
			continue // its peer's handshake timed out
		}
		require.NoError(t, in.Read(t.Context(), pipe.Allocation{}))
		return p
	}
}

// requireHealthy sends a message in each direction of the victim's healthy pipe, and requires that
// both arrive unchanged.
func (v *victim) requireHealthy(t testing.TB) {
	t.Helper()
	v.rounds++
	for _, ends := range [][2]*pipe.Pipe{{v.healthy, v.healthyPeer}, {v.healthyPeer, v.healthy}} {
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

// requireServing requires that an honest peer can open a new pipe to the victim and close it in
// order, and that the healthy pipe works.
func (v *victim) requireServing(t testing.TB) {
	t.Helper()
	peerEnd := v.connectHonest(t, newContext(t, v.over.options("newcomer")))
	victimEnd := v.accept(t)
	closed := make(chan error, 1)
	go func() { closed <- peerEnd.Close() }()
	_, err := victimEnd.Next(t.Context()) // before Close, which may have a short timeout
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.NoError(t, victimEnd.Close())
	require.NoError(t, <-closed)
	v.requireHealthy(t)
}

// requireIdle waits until the victim has no handshake in progress and no pipe but the healthy one,
// and requires that this pipe works.
func (v *victim) requireIdle(t testing.TB) {
	t.Helper()
	v.waitIdle(t)
	v.requireHealthy(t)
}

func (v *victim) waitIdle(t testing.TB) {
	t.Helper()
	waitFor(t, func() bool {
		s := v.Stats()
		return s.HandshakesInProgress == 0 && s.PipesOpen == 1
	}, "handshakes and pipes of attackers must end")
}

// waitFor calls condition every millisecond until it returns true, and fails the test, with the
// text what, if that takes too long. It is for conditions that cause no event.
func waitFor(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, time.Millisecond, what)
}

// cancelled returns a context that is already cancelled.
func cancelled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// doneHook is a context that calls at when Done is first called: when a call blocks, or begins an
// operation that can be cancelled.
type doneHook struct {
	context.Context
	once sync.Once
	at   func()
}

func (c *doneHook) Done() <-chan struct{} {
	c.once.Do(c.at)
	return c.Context.Done()
}

// message returns a new message whose bytes depend on seed. It has a payload and two tensors, the
// second of which has no target device.
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

// requireBroken discards the messages of p, an end of the victim, and requires that p has failed:
// the errors of Next, Err and Write match reasons and name the peer and the connection conn. Then
// it closes p.
func requireBroken(t testing.TB, p *pipe.Pipe, conn string, reasons ...error) {
	t.Helper()
	drop(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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
	require.NoError(t, p.Close(), "closing a broken pipe")
}

// drop discards the messages of p until Next fails, because the pipe has ended.
func drop(t testing.TB, p *pipe.Pipe) {
	t.Helper()
	for {
		in, err := p.Next(t.Context())
		if err != nil {
			return
		}
		_ = in.Discard(t.Context()) // it may have broken the pipe
	}
}

// requireError requires that err is a *pipe.Error that matches reasons, has the peer's address, and
// has conn as the name of its connection.
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

// logRecorder is a log that tests can wait for: the errors of rejected connections appear only
// there.
type logRecorder struct {
	mu      sync.Mutex
	records []record
}

type record struct {
	peer string
	err  error
}

func (r *logRecorder) logger() *slog.Logger { return slog.New(r) }

// Enabled returns true: r handles records of every level. It implements slog.Handler.
func (r *logRecorder) Enabled(context.Context, slog.Level) bool { return true }

// Handle appends the peer and the error among the attributes of line to r's records, and returns
// nil. It implements slog.Handler.
func (r *logRecorder) Handle(_ context.Context, line slog.Record) error {
	var rec record
	line.Attrs(func(a slog.Attr) bool {
		switch v := a.Value.Any().(type) {
		case error:
			rec.err = v
		case string:
			rec.peer = v
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
	return nil
}

// WithAttrs returns r itself and ignores the attributes, which no test uses. It implements
// slog.Handler.
func (r *logRecorder) WithAttrs([]slog.Attr) slog.Handler { return r }

// WithGroup returns r itself and ignores the name, which no test uses. It implements slog.Handler.
func (r *logRecorder) WithGroup(string) slog.Handler { return r }

// find returns, in a new slice, the records for which match returns true, in order. match is called
// with r's lock held.
func (r *logRecorder) find(match func(record) bool) []record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.records), func(rec record) bool { return !match(rec) })
}

// requireRejected waits for the record of a failed handshake with the given peer address, requires
// that its error matches reasons, and returns that error. If there are several records it takes the
// last.
func (r *logRecorder) requireRejected(t testing.TB, peer string, reasons ...error) error {
	t.Helper()
	var found []record
	waitFor(t, func() bool {
		found = r.find(func(rec record) bool { return rec.peer == peer })
		return len(found) > 0
	}, "a record of "+peer)
	last := found[len(found)-1].err
	for _, reason := range reasons {
		require.ErrorIs(t, last, reason)
	}
	return last
}

// count returns the number of records whose error matches reason.
func (r *logRecorder) count(reason error) int {
	return len(r.find(func(rec record) bool { return errors.Is(rec.err, reason) }))
}
