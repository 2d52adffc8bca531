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

// parityCases are the cases of TensorPipe's transport tests, with blocking calls in place of
// callbacks. TensorPipe's tests of closed contexts are in package pipe, which has the contexts.
func parityCases(backend string) []testCase {
	cases := []testCase{
		{"ListenerBasics", listenerBasics},
		{"ListenerAcceptCallbacksAreQueued", listenerAcceptsWait},
		{"ListenerIncomingConnectionsAreQueued", listenerConnectionsWait},
		{"ListenerCreateThenCloseAndThenGetAddress", listenerAddressAfterClose},
		{"ConnectionInitialization", connectionInitialization},
		{"ConnectionInitializationError", connectionInitializationError},
		{"ConnectionNopWrite", connectionNopWrite},
		{"ConnectionQueueWritesBeforeReads", connectionWritesBeforeReads},
		{"ConnectionDestroyFromCallback", connectionCloseOnArrival},
		{"ConnectionEmptyBuffer", connectionEmptyFrames},
		{"ContextBasics", contextBasics},
		{"ContextDomainDescriptor", contextDomainDescriptor},
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

// dialDuringAccept dials l through tr while a call of Accept is blocked. It returns the dialled
// end, and closes the accepted one.
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

// number returns the body of the frame by which connection i identifies itself.
func number(i int) []byte { return fmt.Append(nil, "connection ", i) }

// Blocked calls of Accept return connections in the order of the calls.
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

// acceptNumber accepts a connection and returns its first frame, or the text of an error.
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
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.Dial(t.Context(), addr)
	require.Error(t, err)
	require.NoError(t, l.Close())
	require.Equal(t, addr, l.Addr())
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
	for i := range repetitions {
		require.NoError(t, accepted.WriteFrames(one(block(i))))
	}
	for i := range repetitions {
		wantFrame(t, dialled, block(i))
	}
}

// The reader closes the connection on arrival of a frame, while further frames arrive.
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
	require.NotEmpty(t, dialDuringAccept(t, tr, l).RemoteAddr())
	dial(t, tr, l.Addr())
	require.NotEmpty(t, accept(t, l).RemoteAddr())
}

func contextDomainDescriptor(t *testing.T, b Backend) {
	require.NotEmpty(t, b.New(t).DomainDescriptor())
}
