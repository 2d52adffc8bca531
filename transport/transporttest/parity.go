package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// parityCases are the cases of TensorPipe's own transport tests. Its callbacks are
// calls that block here. Its contexts are those of package pipe, whose tests have the
// case of a closed one.
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
	dialUnderAccept(t, tr, l)
}

// dialUnderAccept dials a listener at which a call of Accept waits.
func dialUnderAccept(t *testing.T, tr transport.Transport, l transport.Listener) transport.Conn {
	t.Helper()
	accepted := patience.StartBlocked(t, "Accept", func() error {
		c, err := l.Accept(t.Context())
		if err == nil {
			c.Close()
		}
		return err
	})
	dialled := dial(t, tr, l.Addr())
	require.NoError(t, patience.Finish(t, accepted))
	return dialled
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
		waiters = append(waiters, patience.StartBlocked(t, "Accept", func() string { return acceptNumber(t.Context(), l) }))
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

// thirteen is a frame of upstream's length.
const thirteen = "thirteen byte"

func connectionInitialization(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.Len(t, thirteen, 13)
	require.NoError(t, dialled.WriteFrames(text(thirteen)))
	wantFrame(t, accepted, []byte(thirteen))
}

func connectionInitializationError(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, accepted.Close())
	for range many {
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
	block := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 16<<10) }
	for i := range many {
		require.NoError(t, accepted.WriteFrames(one(block(i))))
	}
	for i := range many {
		wantFrame(t, dialled, block(i))
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

	// As upstream has it, the reader closes the connection when its read fails.
	dialled, accepted = b.connect(t)
	failed := patience.StartBlocked(t, "NextFrame", func() error {
		_, err := dialled.NextFrame()
		return errors.Join(err, dialled.Close())
	})
	require.NoError(t, accepted.Close())
	err = patience.Finish(t, failed)
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed, "the peer closed the connection")
	_, err = dialled.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

func connectionEmptyFrames(t *testing.T, b Backend) {
	const frames = 100
	dialled, accepted := b.connect(t)
	written := patience.Start(func() error {
		for range frames / 2 {
			if err := errors.Join(dialled.WriteFrames(transport.Frame{}), dialled.WriteFrames(text(thirteen))); err != nil {
				return err
			}
		}
		return nil
	})
	for range frames / 2 {
		wantFrame(t, accepted, nil)
		wantFrame(t, accepted, []byte(thirteen))
	}
	require.NoError(t, patience.Finish(t, written))
}

func contextBasics(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	require.NoError(t, tr.Viable())
	require.NotEmpty(t, dialUnderAccept(t, tr, l).RemoteAddr())
	dial(t, tr, l.Addr())
	require.NotEmpty(t, accept(t, l).RemoteAddr())
}

func contextDomainDescriptor(t *testing.T, b Backend) {
	require.NotEmpty(t, b.New(t).DomainDescriptor())
}
