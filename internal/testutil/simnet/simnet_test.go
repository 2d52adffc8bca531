package simnet_test

import (
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestConformance(t *testing.T) {
	short.Skip(t, "the conformance suite over a slow network")
	overMem := func(rules ...simnet.Rule) transport.Transport {
		return simnet.New(mem.New(nil), rules...)
	}
	for _, tc := range []struct {
		name string
		net  transport.Transport
		addr string
	}{
		{"simnet_mem", overMem(), ""},
		{"simnet_uv", simnet.New(uv.New()), "127.0.0.1:0"},
		{"simnet_slow", overMem(
			simnet.Delay(100*time.Microsecond),
			simnet.Jitter(1, 100*time.Microsecond),
			simnet.Rate(1<<33),
		), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			transporttest.Run(t, transporttest.Backend{
				Name: tc.name,
				New:  func(*testing.T) transport.Transport { return tc.net },
				Addr: tc.addr,
			})
		})
	}
}

// connect returns the two ends of a new link of n, which are closed at the end of the test.
func connect(t *testing.T, n *simnet.Network) (dialled, accepted transport.Conn) {
	t.Helper()
	l, err := n.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	dialled, err = n.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	accepted, err = l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled, accepted
}

func over(rules ...simnet.Rule) *simnet.Network { return simnet.New(mem.New(nil), rules...) }

func text(s string) transport.Frame { return transport.Frame{[]byte(s)} }

func readFrame(c transport.Conn) (string, error) {
	n, err := c.NextFrame()
	if err != nil {
		return "", err
	}
	p := make([]byte, n)
	return string(p), c.ReadBody(p)
}

// readAll reads frames from c until an error, and returns the bodies of the frames and that error,
// which is io.EOF after an orderly end.
func readAll(c transport.Conn) (frames []string, err error) {
	for {
		n, err := c.NextFrame()
		if err != nil {
			return frames, err
		}
		p := make([]byte, n)
		if err := c.ReadBody(p); err != nil {
			return frames, err
		}
		frames = append(frames, string(p))
	}
}

func wantReset(t *testing.T, link int, err error) {
	t.Helper()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	var typed *simnet.ResetError
	require.ErrorAs(t, err, &typed)
	require.Equal(t, link, typed.Link)
}

// runRequests makes one end of a new link of n send three requests, one after the other, and the
// other end reply to each. It returns the requests and replies that arrived, and the error with
// which each end stopped: nil for a client that has got all replies, io.EOF for a server after an
// orderly end.
func runRequests(t *testing.T, n *simnet.Network) (requests, replies []string, clientErr, serverErr error) {
	dialled, accepted := connect(t, n)
	var peer sync.WaitGroup
	peer.Go(func() {
		defer accepted.CloseWrite()
		for {
			q, err := readFrame(accepted)
			if err != nil {
				serverErr = err
				return
			}
			requests = append(requests, q)
			if serverErr = accepted.WriteFrames(text("answer to " + q)); serverErr != nil {
				return
			}
		}
	})
	for _, q := range []string{"a", "b", "c"} {
		if clientErr = dialled.WriteFrames(text(q)); clientErr != nil {
			break
		}
		a, err := readFrame(dialled)
		if clientErr = err; err != nil {
			break
		}
		replies = append(replies, a)
	}
	dialled.CloseWrite()
	peer.Wait()
	return requests, replies, clientErr, serverErr
}

// A scenario whose frames were counted once can be repeated with a cut after each of its frames:
// exactly the frames before the cut arrive, and the client gets a reset.
func TestCutAtEveryFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := over()
		requests, replies, clientErr, serverErr := runRequests(t, whole)
		require.Len(t, requests, 3)
		require.Len(t, replies, 3)
		require.NoError(t, clientErr)
		require.Equal(t, io.EOF, serverErr)
		link := whole.Links()[0]
		require.Equal(t, simnet.Counts{Frames: 3, Bytes: 3}, link.Sent(simnet.Dialled))
		require.Equal(t, simnet.Counts{Frames: 3, Bytes: 33}, link.Sent(simnet.Accepted))

		for n := range 3 {
			requests, replies, clientErr, _ := runRequests(t, over(simnet.CutAt(simnet.AfterFrames(0, simnet.Dialled, n))))
			require.Len(t, requests, n)
			require.Len(t, replies, max(n-1, 0), "no reply is sent on a link that was cut")
			wantReset(t, 0, clientErr)

			requests, replies, clientErr, serverErr := runRequests(t, over(simnet.CutAt(simnet.AfterFrames(0, simnet.Accepted, n))))
			require.Len(t, replies, n)
			require.Len(t, requests, n, "a request after the cut does not arrive")
			wantReset(t, 0, clientErr)
			wantReset(t, 0, serverErr)
		}
	})
}

func TestCutWithinAFrame(t *testing.T) {
	const body = "0123456789"
	for b := range int64(len(body)) + 2 {
		synctest.Test(t, func(t *testing.T) {
			w, r := connect(t, over(simnet.CutAt(simnet.WithinFrame(0, simnet.Dialled, 1, b))))
			werr := w.WriteFrames(text("first"), transport.Frame{[]byte(body[:4]), []byte(body[4:])})
			if bodySent := min(b, int64(len(body))); bodySent < int64(len(body)) {
				wantReset(t, 0, werr)
			} else {
				require.NoError(t, werr)
			}
			first, err := readFrame(r)
			require.NoError(t, err)
			require.Equal(t, "first", first)

			n, err := r.NextFrame()
			require.NoError(t, err)
			require.EqualValues(t, len(body), n, "the header is whole")
			got := ""
			for err == nil && len(got) < len(body) {
				p := make([]byte, 1)
				if err = r.ReadBody(p); err == nil {
					got += string(p)
				}
			}
			require.Equal(t, body[:min(b, n)], got)
			if err == nil {
				_, err = r.NextFrame()
			}
			wantReset(t, 0, err)
			wantReset(t, 0, w.WriteFrames(text("later")))
			wantReset(t, 0, r.WriteFrames(text("back")))
			_, err = w.NextFrame()
			wantReset(t, 0, err)
		})
	}
}

// If a link is cut between frames that are written together, the frames before the cut arrive, and
// then a reset.
func TestCutWithinABatch(t *testing.T) {
	for n := range 4 {
		w, r := connect(t, over(simnet.CutAt(simnet.AfterFrames(0, simnet.Dialled, n))))
		err := w.WriteFrames(text("a"), text("b"), text("c"))
		if n < 3 {
			wantReset(t, 0, err)
		} else {
			require.NoError(t, err, "all of it went out")
		}
		got, err := readAll(r)
		require.Equal(t, []string{"a", "b", "c"}[:n], append([]string{}, got...))
		wantReset(t, 0, err)
	}
}

func TestAfterBytes(t *testing.T) {
	for n := range 8 {
		w, r := connect(t, over(simnet.CutAt(simnet.AfterBytes(0, simnet.Accepted, int64(n)))))
		err := r.WriteFrames(text("abc"), transport.Frame{}, text("def"), text("g"))
		require.Equal(t, n == 7, err == nil)
		var got string
		for err = nil; err == nil; {
			var size int64
			size, err = w.NextFrame()
			for range size {
				p := make([]byte, 1)
				if err = w.ReadBody(p); err != nil {
					break
				}
				got += string(p)
			}
		}
		require.Equal(t, "abcdefg"[:n], got)
		wantReset(t, 0, err)
	}
}

func TestOnlyTheChosenLinkIsCut(t *testing.T) {
	n := over(simnet.CutAt(simnet.AfterFrames(1, simnet.Dialled, 0)))
	for i := range 3 {
		w, r := connect(t, n)
		require.Equal(t, i, n.Links()[i].Number())
		if i == 1 {
			wantReset(t, 1, w.WriteFrames(text("x")))
			require.Zero(t, n.Links()[1].Sent(simnet.Dialled), "rejected writes do not count")
			_, err := r.NextFrame()
			wantReset(t, 1, err)
			continue
		}
		require.NoError(t, w.WriteFrames(text("x")))
		_, err := readFrame(r)
		require.NoError(t, err)
	}
}

func TestCutUnderBlockedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := over()
		w, r := connect(t, n)
		written, read := make(chan error, 1), make(chan error, 1)
		go func() { written <- w.WriteFrames(transport.Frame{make([]byte, 1<<20)}) }()
		go func() {
			_, err := w.NextFrame()
			read <- err
		}()
		synctest.Wait()
		n.Links()[0].Cut()
		wantReset(t, 0, <-written)
		wantReset(t, 0, <-read)

		size, err := r.NextFrame()
		require.NoError(t, err)
		wantReset(t, 0, r.ReadBody(make([]byte, size)))
		require.NoError(t, r.Close())
		_, err = r.NextFrame()
		require.Error(t, err)
		require.ErrorIs(t, r.WriteFrames(text("x")), transport.ErrClosed, "Close takes precedence over the cut")
	})
}

func TestCutBeforeAccept(t *testing.T) {
	n := over()
	l, err := n.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := n.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	defer dialled.Close()
	require.NoError(t, dialled.WriteFrames(text("before")))
	n.Links()[0].Cut()
	accepted, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer accepted.Close()
	got, err := readAll(accepted)
	require.Equal(t, []string{"before"}, got)
	wantReset(t, 0, err)
	_, err = dialled.NextFrame()
	wantReset(t, 0, err)
	require.Len(t, n.Links(), 1)
}

func TestAddressesMayBeUsedAgain(t *testing.T) {
	n := simnet.New(sameAddresses{mem.New(nil)})
	for i := range 3 {
		w, r := connect(t, n)
		require.NoError(t, w.WriteFrames(text("x")))
		_, err := readFrame(r)
		require.NoError(t, err)
		require.Len(t, n.Links(), i+1)
		require.Equal(t, 1, n.Links()[i].Sent(simnet.Dialled).Frames)
	}
}
