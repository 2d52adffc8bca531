package shm

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

func TestParity(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"ShmChunking":                   chunking,
		"ShmChunkingImplicitRead":       chunkingImplicitRead,
		"ShmQueueWrites":                queueWrites,
		"ShmNopWriteWrapAround":         nopWrapAround,
		"ShmExplicitAbstractSocketName": explicitName,
		"ShmAutobindAbstractSocketName": autobind,
		"ShmReactor": func(t *testing.T) {
			t.Run("another process", wokenByProcess)
			t.Run("token reuse", tokenReuse)
		},
		"ShmSockaddrFromToString": namesRoundTrip,
	} {
		parity.Case(t, "tensorpipe/transport."+name, test)
	}
}

// random returns n pseudo-random bytes.
func random(seed byte, n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func write(c *conn, p []byte) <-chan error {
	return testwait.Start(func() error { return c.WriteFrames(transport.Frame{p}) })
}

func readFrame(c transport.Conn) ([]byte, error) {
	n, err := c.NextFrame()
	if err != nil {
		return nil, err
	}
	p := make([]byte, n)
	return p, c.ReadBody(p)
}

func wantFrame(t testing.TB, c transport.Conn, want []byte) {
	t.Helper()
	got, err := readFrame(c)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "other bytes")
}

// withBothKinds runs test twice: with a transport that uses doorbells and with one that does not.
func withBothKinds(t *testing.T, test func(t *testing.T, tr *Transport)) {
	t.Run("doorbells", func(t *testing.T) { test(t, New()) })
	t.Run("tokens", func(t *testing.T) { test(t, New(triggers)) })
}

func chunking(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		dialled, accepted := connect(t, tr)
		want, got := random(1, 5*inboxSize), make([]byte, 5*inboxSize)
		written := write(dialled, want)
		n, err := accepted.NextFrame()
		require.NoError(t, err)
		require.EqualValues(t, len(got), n)
		require.NoError(t, accepted.ReadBody(got))
		require.True(t, bytes.Equal(want, got))
		require.NoError(t, testwait.Finish(t, written))
	})
}

func chunkingImplicitRead(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		dialled, accepted := connect(t, tr)
		want := random(2, 5*inboxSize)
		written := write(dialled, want)
		wantFrame(t, accepted, want)
		require.NoError(t, testwait.Finish(t, written))
	})
}

// writeTwice writes p in a frame, and starts a second such write, which is blocked when writeTwice
// returns. The channel receives the result of the second write.
func writeTwice(t *testing.T, c *conn, p []byte) <-chan error {
	t.Helper()
	require.NoError(t, c.WriteFrames(transport.Frame{p}), "it fits")
	return testwait.StartBlocked(t, "WriteFrames", func() error { return c.WriteFrames(transport.Frame{p}) })
}

func queueWrites(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		for _, size := range []int{inboxSize * 3 / 4, inboxSize - headerSize} {
			dialled, accepted := connect(t, tr)
			want := random(3, size)
			written := writeTwice(t, dialled, want)
			wantFrame(t, accepted, want)
			wantFrame(t, accepted, want)
			require.NoError(t, testwait.Finish(t, written))
		}
	})
}

func nopWrapAround(t *testing.T) {
	withBothKinds(t, func(t *testing.T, tr *Transport) {
		dialled, accepted := connect(t, tr)
		text := string(random(4, inboxSize*3/4))
		for range 2 {
			written := writeTwice(t, dialled, nop.AppendString(nop.AppendStructHeader(nil, 1), text))
			for range 2 {
				got, err := readFrame(accepted)
				require.NoError(t, err)
				d := nop.NewDecoder(got)
				d.Struct(1)
				require.True(t, text == string(d.Bytes()))
				require.NoError(t, d.Finish())
			}
			require.NoError(t, testwait.Finish(t, written))
		}
	})
}

// exchangeFrames dials l by its name, accepts the connection, checks the addresses, and sends a
// frame in each direction.
func exchangeFrames(t *testing.T, l transport.Listener) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	dialled, err := New().Dial(ctx, l.Addr())
	require.NoError(t, err)
	defer dialled.Close()
	require.Equal(t, l.Addr(), dialled.RemoteAddr())
	accepted, err := l.Accept(ctx)
	require.NoError(t, err)
	defer accepted.Close()
	require.Equal(t, l.Addr(), accepted.LocalAddr())
	require.NoError(t, dialled.WriteFrames(transport.Frame{[]byte("question")}))
	wantFrame(t, accepted, []byte("question"))
	require.NoError(t, accepted.WriteFrames(transport.Frame{[]byte("answer")}))
	wantFrame(t, dialled, []byte("answer"))
}

func explicitName(t *testing.T) {
	name := fmt.Sprintf("tensorpipe-go shm test %d", os.Getpid())
	l, err := New().Listen(t.Context(), name)
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, name, l.Addr())
	exchangeFrames(t, l)
	_, err = New().Listen(t.Context(), name)
	require.ErrorContains(t, err, "address already in use")
}

func autobind(t *testing.T) {
	first, err := New().Listen(t.Context(), "")
	require.NoError(t, err)
	defer first.Close()
	second, err := New().Listen(t.Context(), "")
	require.NoError(t, err)
	defer second.Close()
	require.NotEqual(t, first.Addr(), second.Addr())
	for _, l := range []transport.Listener{first, second} {
		require.Regexp(t, "^[0-9a-f]{5}$", l.Addr())
		exchangeFrames(t, l)
	}
}

func namesRoundTrip(t *testing.T) {
	pid := fmt.Sprint(os.Getpid()) // other processes may run the same test
	for _, name := range []string{"a", "@", "with space", "\xff\xfe", "päth/like", strings.Repeat("x", maxName-len(pid))} {
		name += pid
		l, err := New().Listen(t.Context(), name)
		require.NoError(t, err, name)
		require.Equal(t, name, l.Addr())
		c, err := New().Dial(t.Context(), name)
		require.NoError(t, err, name)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
	for _, name := range []string{strings.Repeat("x", maxName+1), "a\x00b"} {
		var bad *AddrError
		_, err := New().Listen(t.Context(), name)
		require.ErrorAs(t, err, &bad)
		_, err = New().Dial(t.Context(), name)
		require.ErrorAs(t, err, &bad)
		require.Equal(t, name, bad.Addr)
	}
	_, err := New().Dial(t.Context(), "")
	require.ErrorContains(t, err, "no name")
}

// reactorFor returns a reactor, which is released when the test ends.
func reactorFor(t *testing.T) *reactor {
	t.Helper()
	var all reactors
	r, err := all.acquire()
	require.NoError(t, err)
	t.Cleanup(func() { all.release(r) })
	return r
}

func wokenByProcess(t *testing.T) {
	r := reactorFor(t)
	wakeups := []wakeup{newWakeup(), newWakeup(), newWakeup()}
	for trigger, b := range wakeups {
		require.EqualValues(t, trigger, r.register(b))
	}
	r.startPolling(0, time.Millisecond)
	defer r.stopPolling()
	peer := start(t, "tokens", "", r.memory.header.File(), r.memory.data.File())
	testwait.Finish(t, wakeups[0])
	testwait.Finish(t, wakeups[2])
	peer.finish(t)
	require.Empty(t, wakeups[1], "woken without a token")
}

func tokenReuse(t *testing.T) {
	r := reactorFor(t)
	for trigger := range uint32(4) {
		require.Equal(t, trigger, r.register(newWakeup()))
	}
	r.unregister(2)
	r.unregister(1)
	for _, trigger := range []uint32{1, 2, 4} {
		require.Equal(t, trigger, r.register(newWakeup()))
	}
}
