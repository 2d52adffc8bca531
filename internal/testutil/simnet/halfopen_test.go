package simnet_test

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// arrivals records the frames and the final error that a connection reads.
type arrivals struct {
	frames []string
	err    error
}

// collect starts a goroutine that reads frames from c until an error, and returns the arrivals to
// which it adds them. The caller must not access these while the goroutine may run.
func collect(c transport.Conn) *arrivals {
	a := new(arrivals)
	go func() {
		for {
			f, err := readFrame(c)
			if err != nil {
				a.err = err
				return
			}
			a.frames = append(a.frames, f)
		}
	}()
	return a
}

func TestHalfOpenThenHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over()
		x, y := connect(t, n)
		atX, atY := collect(x), collect(y)
		send := func(s string) {
			require.NoError(t, x.WriteFrames(text("x "+s)))
			require.NoError(t, y.WriteFrames(text("y "+s)))
			synctest.Wait()
		}
		send("before")
		n.Links()[0].HalfOpen()
		send("during")
		n.Links()[0].HalfOpen()
		require.NoError(t, y.CloseWrite())
		synctest.Wait()
		require.Equal(t, &arrivals{frames: []string{"y before"}}, atX)
		require.Equal(t, &arrivals{frames: []string{"x before"}}, atY)

		n.Links()[0].Heal()
		synctest.Wait()
		require.Equal(t, &arrivals{frames: []string{"y before", "y during"}, err: io.EOF}, atX)
		require.Equal(t, []string{"x before", "x during"}, atY.frames)
		require.NoError(t, x.WriteFrames(text("after")))
		synctest.Wait()
		require.Equal(t, []string{"x before", "x during", "after"}, atY.frames)
	})
}

func TestHalfOpenAtEveryFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := range 4 {
			w, r := connect(t, over(simnet.HalfOpenAt(simnet.AfterFrames(0, simnet.Dialled, n))))
			require.NoError(t, w.WriteFrames(text("a"), text("b"), text("c")))
			require.NoError(t, w.Close())
			got := collect(r)
			synctest.Wait()
			require.NoError(t, got.err)
			require.Equal(t, []string{"a", "b", "c"}[:n], append([]string{}, got.frames...))
			require.NoError(t, r.Close())
			synctest.Wait()
			require.ErrorIs(t, got.err, transport.ErrClosed)
		}
	})
}

func TestHalfOpenWithinAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over(simnet.HalfOpenAt(simnet.WithinFrame(0, simnet.Dialled, 0, 3)))
		w, r := connect(t, n)
		require.NoError(t, w.WriteFrames(text("abcdef"), text("g")))
		size, err := r.NextFrame()
		require.NoError(t, err)
		require.EqualValues(t, 6, size)
		got := make([]byte, 6)
		require.NoError(t, r.ReadBody(got[:3]))
		remaining := make(chan error, 1)
		go func() { remaining <- r.ReadBody(got[3:]) }()
		synctest.Wait()
		require.Empty(t, remaining)
		n.Links()[0].Heal()
		require.NoError(t, <-remaining)
		require.Equal(t, "abcdef", string(got))
		next, err := readFrame(r)
		require.NoError(t, err)
		require.Equal(t, "g", next)
	})
}

// On a half-open link an end does not learn that its peer has closed: its writes succeed and its
// reads stay blocked.
func TestHalfOpenHidesThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over()
		w, closed := connect(t, n)
		n.Links()[0].HalfOpen()
		require.NoError(t, closed.Close())
		read := collect(w)
		for range 10 {
			require.NoError(t, w.WriteFrames(text("data")))
		}
		synctest.Wait()
		require.NoError(t, read.err)
		require.NoError(t, w.Close())
		synctest.Wait()
		require.ErrorIs(t, read.err, transport.ErrClosed)
	})
}

func TestHalfOpenFillsTheBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(mem.New(nil, mem.WithBuffer(100)))
		w, _ := connect(t, n)
		n.Links()[0].HalfOpen()
		written := make(chan error, 1)
		go func() { written <- w.WriteFrames(transport.Frame{make([]byte, 200)}) }()
		synctest.Wait()
		require.Empty(t, written)
		require.NoError(t, w.Close())
		require.ErrorIs(t, <-written, transport.ErrClosed)
	})
}

func TestCutOfAHalfOpenLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over()
		w, r := connect(t, n)
		n.Links()[0].HalfOpen()
		require.NoError(t, w.WriteFrames(text("lost")))
		got := collect(r)
		synctest.Wait()
		n.Links()[0].Cut()
		synctest.Wait()
		require.Empty(t, got.frames)
		wantReset(t, 0, got.err)
	})
}

// If a rule makes the link half-open within a frame and another one cuts it later in the same
// frame, the reader gets the bytes before the first fault and then a reset.
func TestTwoFaultsInOneFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over(
			simnet.HalfOpenAt(simnet.WithinFrame(0, simnet.Dialled, 0, 2)),
			simnet.CutAt(simnet.WithinFrame(0, simnet.Dialled, 0, 4)),
		)
		w, r := connect(t, n)
		wantReset(t, 0, w.WriteFrames(text("abcdef")))
		_, err := r.NextFrame()
		require.NoError(t, err)
		require.NoError(t, r.ReadBody(make([]byte, 2)))
		wantReset(t, 0, r.ReadBody(make([]byte, 1)))
	})
}

func TestReachAndAdvertise(t *testing.T) {
	optional, plain := simnet.New(sameAddresses{mem.New(nil)}), over()
	peer := fixed{remote: "me"}
	require.Equal(t, "x from me", optional.Reach("x", peer))
	require.Equal(t, "x", plain.Reach("x", peer))
	require.Equal(t, "x for me", optional.Advertise("x", peer))
	require.Equal(t, "x", plain.Advertise("x", peer))
	at, ok := optional.AdvertiseAt("x", "me")
	require.True(t, ok)
	require.Equal(t, "x at me", at)
	at, ok = plain.AdvertiseAt("x", "me")
	require.True(t, ok)
	require.Equal(t, "x", at)
}
