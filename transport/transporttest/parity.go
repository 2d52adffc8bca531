package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// parityCases are the cases of TensorPipe's own transport tests. Its
// callbacks are calls that block here, and its contexts are gone: what closing
// a context did is done by closing what was opened.
func parityCases(backend string) []testCase {
	cases := []testCase{
		{"ListenerBasics", listenerBasics},
		{"ListenerAcceptCallbacksAreQueued", listenerAcceptsWait},
		{"ListenerIncomingConnectionsAreQueued", listenerConnectionsWait},
		{"ListenerCreateThenCloseAndThenGetAddress", listenerAddressAfterClose},
		{"ListenerCreateAfterClosingContextAndThenGetAddress", listenerAddressAfterContext},
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
	accepted := patience.Start(func() error {
		c, err := l.Accept(t.Context())
		if err == nil {
			c.Close()
		}
		return err
	})
	dial(t, tr, l.Addr())
	require.NoError(t, patience.Finish(t, accepted))
}

const many = 10

// number is the frame by which a connection says which one it is.
func number(i int) []byte { return fmt.Append(nil, "connection ", i) }

// Calls wait in line before anybody comes, and whoever called first gets the first
// connection.
func listenerAcceptsWait(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	var waiters []<-chan string
	for range many {
		names := make(chan string, 1)
		waiters = append(waiters, patience.Start(func() string {
			names <- ownName()
			return acceptNumber(t.Context(), l)
		}))
		awaitCall(t, <-names, "Accept")
	}
	for i := range many {
		require.NoError(t, dial(t, tr, l.Addr()).WriteFrames(one(number(i))))
	}
	for i, got := range waiters {
		require.Equal(t, string(number(i)), patience.Finish(t, got), "call %d", i)
	}
}

// acceptNumber returns what the next connection says it is, or what went wrong.
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
	for i := range many {
		require.NoError(t, dial(t, tr, l.Addr()).WriteFrames(one(number(i))))
	}
	for i := range many {
		wantFrame(t, accept(t, l), number(i))
	}
}

func listenerAddressAfterClose(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	addr := l.Addr()
	require.NotEmpty(t, addr)
	require.NoError(t, l.Close())
	wantDeadListener(t, tr, l, addr)
}

// The context of Listen bounds the call only: its end closes nothing.
func listenerAddressAfterContext(t *testing.T, b Backend) {
	tr := b.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := tr.Listen(ctx, b.Addr)
	require.NoError(t, err)
	cancel()
	addr := l.Addr()
	dial(t, tr, addr)
	accept(t, l)
	require.NoError(t, l.Close())
	wantDeadListener(t, tr, l, addr)
}

func wantDeadListener(t *testing.T, tr transport.Transport, l transport.Listener, addr string) {
	t.Helper()
	require.Equal(t, addr, l.Addr())
	_, err := l.Accept(t.Context())
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.Dial(t.Context(), addr)
	require.Error(t, err)
	require.NoError(t, l.Close())
	require.Equal(t, addr, l.Addr())
}

func connectionInitialization(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	const greeting = "thirteen byte"
	require.Len(t, greeting, 13)
	require.NoError(t, dialled.WriteFrames(text(greeting)))
	wantFrame(t, accepted, []byte(greeting))
}

func connectionInitializationError(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, accepted.Close())
	for range 3 {
		_, err := dialled.NextFrame()
		require.Error(t, err)
		require.NotErrorIs(t, err, transport.ErrClosed, "it was the peer who closed")
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
	block := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 16_000) }
	for i := range many {
		require.NoError(t, dialled.WriteFrames(one(block(i))))
	}
	for i := range many {
		wantFrame(t, accepted, block(i))
	}
}

// The goroutine that a frame wakes closes the connection under the frames that
// still come.
func connectionCloseOnArrival(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := patience.Start(func() error {
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
	require.NotErrorIs(t, patience.Finish(t, written), transport.ErrClosed)
}

func connectionEmptyFrames(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	for range many {
		require.NoError(t, dialled.WriteFrames(transport.Frame{}))
		require.NoError(t, dialled.WriteFrames(text("full")))
	}
	for range many {
		wantFrame(t, accepted, nil)
		wantFrame(t, accepted, []byte("full"))
	}
}

func contextBasics(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, b.New(t).Viable())
	require.NotEmpty(t, dialled.RemoteAddr())
	require.NotEmpty(t, accepted.RemoteAddr())
}

func contextDomainDescriptor(t *testing.T, b Backend) {
	require.NotEmpty(t, b.New(t).DomainDescriptor())
}
