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
	{"Descriptors", descriptors},
	{"ForeignDescriptors", foreignDescriptors},
	{"AddressesMatch", addressesMatch},
	{"AddressesStayAfterClose", addressesAfterClose},
	{"DialClosedListener", dialClosedListener},
	{"CancelledBefore", cancelledBefore},
	{"CancelledAfterListen", cancelledAfterListen},
	{"CancelledAccept", cancelledAccept},
	{"CloseListenerDuringAccept", closeDuringAccept},
	{"CloseListenerResetsUnaccepted", closeResetsUnaccepted},
	{"CloseListenerKeepsAccepted", closeKeepsAccepted},
	{"ManyConnections", manyConnections},
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
		"", ":", "*", "nonsense:*", own[:len(own)-1], "x" + own, "\x00", "\xff\xfe",
		strings.Repeat(own, 10_000),
	} {
		require.False(t, tr.CanCommunicate(text), "%.40q", text)
	}
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
	require.ErrorContains(t, err, l.Addr())
}

func cancelledBefore(t *testing.T, b Backend) {
	tr, l := b.listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tr.Listen(ctx, b.Addr)
	require.ErrorIs(t, err, context.Canceled)
	_, err = tr.Dial(ctx, l.Addr())
	require.ErrorIs(t, err, context.Canceled)

	dial(t, tr, l.Addr())
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, context.Canceled)
	accept(t, l)
}

// The context of Listen bounds only the call. Cancelling it later has no effect.
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

// A cancelled Accept takes no connection from another one.
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
		require.ErrorIs(t, testwait.Finish(t, cancelled), context.Canceled)
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
	require.NoError(t, l.Close())
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

// manyConnections exchanges requests and replies on many connections concurrently.
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
