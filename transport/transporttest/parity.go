package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// parityCases returns the cases of TensorPipe's own transport tests, with blocking calls in place
// of callbacks. Each case runs under its parity id, which contains backend, the transport's name.
// Package pipe has TensorPipe's tests of closed contexts.
func parityCases(backend string) []testCase {
	cases := []testCase{
		{"ListenerBasics", "Listener.Accept: Accept returns the next connection, in the order of arrival, and blocks until there is one.", listenerBasics},
		{"ListenerAcceptCallbacksAreQueued", "Listener.Accept: Concurrent calls are served in order.", listenerAcceptsWait},
		{"ListenerIncomingConnectionsAreQueued", "Listener.Accept: Accept returns the next connection, in the order of arrival, and blocks until there is one.", listenerConnectionsWait},
		{"ListenerCreateThenCloseAndThenGetAddress", "Listener.Addr: It stays available after Close.", listenerAddressAfterClose},
		{"ConnectionInitialization", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", connectionInitialization},
		{"ConnectionInitializationError", "Conn: Whatever the peer does, no error matches ErrClosed, which reports that this process has closed the Conn.", connectionInitializationError},
		{"ConnectionNopWrite", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", connectionNopWrite},
		{"ConnectionQueueWritesBeforeReads", "Conn.WriteFrames: WriteFrames writes the frames in order with as few system calls as the transport can.", connectionWritesBeforeReads},
		{"ConnectionDestroyFromCallback", "ErrClosed: ErrClosed is returned by calls on a Conn or Listener that this process has closed.", connectionCloseOnArrival},
		{"ConnectionEmptyBuffer", "Frame: A frame may be empty.", connectionEmptyFrames},
		{"ContextBasics", "Listener.Accept: Accept returns the next connection, in the order of arrival, and blocks until there is one.", contextBasics},
		{"ContextDomainDescriptor", "Transport.DomainDescriptor: It is sent to the peer and never empty.", contextDomainDescriptor},
	}
	for i := range cases {
		id := "tensorpipe/transport." + cases[i].name + "@" + backend
		test := cases[i].test
		cases[i].test = func(t *testing.T, b Backend) {
			parity.Case(t, id, func(t *testing.T) { test(t, b) })
		}
	}
	return cases
}

func listenerBasics(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	dialDuringAccept(t, tr, l)
}

// dialDuringAccept dials l's address on tr while a call of l.Accept is blocked, and checks that
// Accept then returns a connection. It returns the dialled end, which is closed at the end of the
// test, and closes the accepted end.
func dialDuringAccept(t *testing.T, tr transport.Transport, l transport.Listener) transport.Conn {
	t.Helper()
	accepted := testwait.StartBlocked(t, "Accept", func() error {
		c, err := l.Accept(t.Context())
		if err == nil {
			c.Close()
		}
		return err
	})
	dialled := dial(t, tr, l.Addr())
	require.NoError(t, testwait.Finish(t, accepted))
	return dialled
}

// repetitions is how often tests repeat a short sequence.
const repetitions = 10

// number returns the body of the frame that identifies the i-th connection, such as "connection 3".
func number(i int) []byte { return fmt.Append(nil, "connection ", i) }

// listenerAcceptsWait checks that blocked calls of Accept return connections in the order of the
// calls.
func listenerAcceptsWait(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	var waiters []<-chan string
	for range repetitions {
		waiters = append(waiters, testwait.StartBlocked(t, "Accept", func() string { return acceptNumber(t.Context(), l) }))
	}
	for i := range repetitions {
		require.NoError(t, dial(t, tr, l.Addr()).WriteFrames(one(number(i))))
	}
	for i, got := range waiters {
		require.Equal(t, string(number(i)), testwait.Finish(t, got), "call %d", i)
	}
}

// acceptNumber accepts a connection from l, reads one frame, and closes the connection. It returns
// the body of that frame, or the text of the error if accepting or reading fails.
func acceptNumber(ctx context.Context, l transport.Listener) string {
	c, err := l.Accept(ctx)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	p, err := readFrame(c)
	if err != nil {
		return err.Error()
	}
	return string(p)
}

func listenerConnectionsWait(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	for i := range repetitions {
		require.NoError(t, dial(t, tr, l.Addr()).WriteFrames(one(number(i))))
	}
	for i := range repetitions {
		wantFrame(t, accept(t, l), number(i))
	}
}

func listenerAddressAfterClose(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	addr := l.Addr()
	require.NotEmpty(t, addr)
	require.NoError(t, l.Close())
	wantClosedListener(t, tr, l, addr)
}

func wantClosedListener(t *testing.T, tr transport.Transport, l transport.Listener, addr string) {
	t.Helper()
	require.Equal(t, addr, l.Addr())
	_, err := l.Accept(t.Context())
	require.ErrorIs(t, err, transport.ErrClosed, "Accept returns ErrClosed after Close")
	_, err = tr.Dial(t.Context(), addr)
	require.Error(t, err, "Dial returns an error if no listener is open")
	require.NoError(t, l.Close(), "closing again does nothing and returns nil")
	require.Equal(t, addr, l.Addr(), "Addr stays available after Close")
}

// upstreamFrame has the length of the frames in TensorPipe's tests.
const upstreamFrame = "thirteen byte"

func connectionInitialization(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.Len(t, upstreamFrame, 13)
	require.NoError(t, dialled.WriteFrames(text(upstreamFrame)))
	wantFrame(t, accepted, []byte(upstreamFrame))
}

func connectionInitializationError(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, accepted.Close())
	for range repetitions {
		_, err := dialled.NextFrame()
		require.Error(t, err)
		require.NotErrorIs(t, err, transport.ErrClosed, "the peer closed the connection")
	}
}

func connectionNopWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	p := nop.AppendStructHeader(nil, 2)
	p = nop.AppendString(p, "cuda")
	p = nop.AppendInt(p, 7)
	require.NoError(t, dialled.WriteFrames(one(p)))

	got, err := readFrame(accepted)
	require.NoError(t, err)
	d := nop.NewDecoder(got)
	d.Struct(2)
	require.Equal(t, "cuda", string(d.Bytes()))
	require.EqualValues(t, 7, d.Int32())
	require.NoError(t, d.Finish())
}

func connectionWritesBeforeReads(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	block := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 16<<10) }
	written := testwait.Start(func() error {
		for i := range repetitions {
			if err := accepted.WriteFrames(one(block(i))); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range repetitions {
		wantFrame(t, dialled, block(i))
	}
	require.NoError(t, testwait.Finish(t, written))
}

// connectionCloseOnArrival checks a reader that closes its connection when a call of NextFrame
// returns. If NextFrame has returned a frame, while more arrive, later calls of the reader return
// ErrClosed and the writer gets another error. If NextFrame has returned an error, because the peer
// has closed, that error is not ErrClosed.
func connectionCloseOnArrival(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := testwait.Start(func() error {
		for {
			if err := dialled.WriteFrames(text("more")); err != nil {
				return err
			}
		}
	})
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	require.ErrorIs(t, accepted.ReadBody(make([]byte, 4)), transport.ErrClosed)
	require.NotErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)

	// As in TensorPipe's test, the reader closes the connection when its read fails.
	dialled, accepted = b.connect(t)
	failed := testwait.StartBlocked(t, "NextFrame", func() error {
		_, err := dialled.NextFrame()
		return errors.Join(err, dialled.Close())
	})
	require.NoError(t, accepted.Close())
	err = testwait.Finish(t, failed)
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed, "the peer closed the connection")
	_, err = dialled.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

func connectionEmptyFrames(t *testing.T, b Backend) {
	const frames = 100
	dialled, accepted := b.connect(t)
	written := testwait.Start(func() error {
		for range frames / 2 {
			if err := errors.Join(dialled.WriteFrames(transport.Frame{}), dialled.WriteFrames(text(upstreamFrame))); err != nil {
				return err
			}
		}
		return nil
	})
	for range frames / 2 {
		wantFrame(t, accepted, nil)
		wantFrame(t, accepted, []byte(upstreamFrame))
	}
	require.NoError(t, testwait.Finish(t, written))
}

func contextBasics(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	require.NoError(t, tr.Viable())
	dialDuringAccept(t, tr, l)
	dial(t, tr, l.Addr())
	accept(t, l)
}

func contextDomainDescriptor(t *testing.T, b Backend) {
	require.NotEmpty(t, b.New(t).DomainDescriptor())
}
