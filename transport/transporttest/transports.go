package transporttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var transportCases = []testCase{
	{"Descriptors", "Transport.CanCommunicate: CanCommunicate reports whether a peer with that domain descriptor can be reached.", descriptors},
	{"ForeignDescriptors", "Transport.CanCommunicate: It returns false for a text that no transport of this kind sends.", foreignDescriptors},
	{"AddressesMatch", "Conn.LocalAddr: Unless the network translates addresses, LocalAddr of the end that dialled equals RemoteAddr of the end that accepted, and the reverse.", addressesMatch},
	{"AddressesStayAfterClose", "Conn.LocalAddr: They stay available after Close.", addressesAfterClose},
	{"DialClosedListener", "Transport.Dial: It returns an error if no listener is open at addr.", dialClosedListener},
	{"CancelledBefore", "Transport.Dial: After ctx has ended, Dial returns an error that matches that of ctx.", cancelledBefore},
	{"CancelledAfterListen", "Transport.Listen: ctx bounds the call only, not the lifetime of the listener.", cancelledAfterListen},
	{"CancelledAccept", "Listener.Accept: A call that fails takes no connection.", cancelledAccept},
	{"CloseListenerDuringAccept", "Listener.Close: Blocked calls of Accept return ErrClosed.", closeDuringAccept},
	{"CloseListenerResetsUnaccepted", "Listener.Close: Connections that were not accepted are closed; accepted ones stay open.", closeResetsUnaccepted},
	{"CloseListenerKeepsAccepted", "Listener.Close: Connections that were not accepted are closed; accepted ones stay open.", closeKeepsAccepted},
	{"ManyConnections", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", manyConnections},
}

func descriptors(t *testing.T, b Backend) {
	x, y := b.New(t), b.New(t)
	require.True(t, x.CanCommunicate(x.DomainDescriptor()))
	require.True(t, x.CanCommunicate(y.DomainDescriptor()))
	require.True(t, y.CanCommunicate(x.DomainDescriptor()))
}

func foreignDescriptors(t *testing.T, b Backend) {
	tr := b.New(t)
	own := tr.DomainDescriptor()
	for _, text := range []string{
		"", ":", "*", "nonsense:*", "x" + own, "\x00", "\xff\xfe",
	} {
		require.False(t, tr.CanCommunicate(text), "%.40q", text)
	}
	tr.CanCommunicate(strings.Repeat(own, 10_000)) // either result, but no panic
}

func addressesMatch(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.Equal(t, dialled.LocalAddr(), accepted.RemoteAddr())
	require.Equal(t, dialled.RemoteAddr(), accepted.LocalAddr())
}

func addressesAfterClose(t *testing.T, b Backend) {
	dialled, _ := b.connect(t)
	local, remote := dialled.LocalAddr(), dialled.RemoteAddr()
	require.NoError(t, dialled.Close())
	require.Equal(t, local, dialled.LocalAddr())
	require.Equal(t, remote, dialled.RemoteAddr())
}

func dialClosedListener(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	require.NoError(t, l.Close())
	_, err := tr.Dial(t.Context(), l.Addr())
	require.Error(t, err)
}

func cancelledBefore(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if other, err := tr.Listen(ctx, b.Addr); err == nil { // it did not have to wait
		require.NoError(t, other.Close())
	} else {
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err := tr.Dial(ctx, l.Addr())
	require.ErrorIs(t, err, context.Canceled, "Dial with a context that has ended")

	dial(t, tr, l.Addr())
	if c, err := l.Accept(ctx); err == nil { // it did not have to wait
		require.NoError(t, c.Close())
		return
	} else {
		require.ErrorIs(t, err, context.Canceled)
	}
	accept(t, l)
}

// cancelledAfterListen checks that the context of Listen bounds only that call: after it is
// cancelled, the listener still accepts connections, and can be closed.
func cancelledAfterListen(t *testing.T, b Backend) {
	tr := b.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := tr.Listen(ctx, b.Addr)
	require.NoError(t, err)
	cancel()
	addr := l.Addr()
	dial(t, tr, addr)
	accept(t, l)
	require.NoError(t, l.Close())
	wantClosedListener(t, tr, l, addr)
}

// cancelledAccept checks that a call of Accept whose context is cancelled returns the context's
// error, and that another call, blocked at the same time, gets the next connection.
func cancelledAccept(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	for i := range repetitions {
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := testwait.Start(func() error {
			_, err := l.Accept(ctx)
			return err
		})
		other := testwait.Start(func() string {
			c, err := l.Accept(t.Context())
			if err != nil {
				return err.Error()
			}
			defer c.Close()
			p, _ := readFrame(c)
			return string(p)
		})
		cancel()
		require.ErrorIs(t, testwait.Finish(t, cancelled), context.Canceled, "Accept whose context has ended")
		require.NoError(t, dial(t, tr, l.Addr()).WriteFrames(one(number(i))))
		require.Equal(t, string(number(i)), testwait.Finish(t, other))
	}
}

func closeDuringAccept(t *testing.T, b Backend) {
	_, l := b.listen(t)
	var calls []<-chan error
	for range repetitions {
		calls = append(calls, testwait.Start(func() error {
			_, err := l.Accept(t.Context())
			return err
		}))
	}
	require.NoError(t, l.Close())
	for _, call := range calls {
		require.ErrorIs(t, testwait.Finish(t, call), transport.ErrClosed)
	}
	require.NoError(t, l.Close(), "closing again does nothing and returns nil")
}

func closeResetsUnaccepted(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	waiting := dial(t, tr, l.Addr())
	require.NoError(t, l.Close())
	_, err := waiting.NextFrame()
	require.Error(t, err)
}

func closeKeepsAccepted(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	dialled, accepted := dial(t, tr, l.Addr()), accept(t, l)
	require.NoError(t, l.Close())
	require.NoError(t, dialled.WriteFrames(text("still open")))
	wantFrame(t, accepted, []byte("still open"))
}

// manyConnections checks that 16 connections of one listener work at the same time: each carries 20
// requests and their replies.
func manyConnections(t *testing.T, b Backend) {
	const connections, rounds = 16, 20
	tr, l := b.listen(t)
	var all sync.WaitGroup
	errs := make(chan error, 2*connections)
	for i := range connections {
		dialled, accepted := dial(t, tr, l.Addr()), accept(t, l)
		all.Go(func() { errs <- echo(accepted, rounds) })
		all.Go(func() { errs <- ask(dialled, i, rounds) })
	}
	all.Wait()
	for range 2 * connections {
		require.NoError(t, <-errs)
	}
}

func echo(c transport.Conn, rounds int) error {
	for range rounds {
		p, err := readFrame(c)
		if err != nil {
			return err
		}
		if err := c.WriteFrames(one(p)); err != nil {
			return err
		}
	}
	return nil
}

func ask(c transport.Conn, id, rounds int) error {
	for round := range rounds {
		want := fmt.Sprintf("request %d of connection %d", round, id)
		if err := c.WriteFrames(text(want)); err != nil {
			return err
		}
		got, err := readFrame(c)
		if err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
	}
	return nil
}
