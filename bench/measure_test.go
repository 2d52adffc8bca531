package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/interop"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// small returns the Spec of a short measurement over one TCP connection, with messages of size
// bytes. named is as in Spec.
func small(size int, named bool) Spec {
	return Spec{
		Transports: []string{"uv"}, Channels: []string{"basic"},
		Size: size, Named: named, Depth: 4, RoundTrips: 25, ColdTrips: 3, OneWay: 70, Idle: time.Millisecond,
	}
}

// requireSane fails the test unless r has the values of s and plausible figures, as every
// measurement over TCP has.
func requireSane(t *testing.T, s Spec, r *Result) {
	t.Helper()
	require.Equal(t, s.Size, r.SizeBytes)
	require.Equal(t, s.Named, r.Named)
	require.Equal(t, s.Depth, r.Depth)
	require.Equal(t, s.OneWay, r.Messages)
	require.Equal(t, s.RoundTrips, r.RoundTrips)
	require.Equal(t, "uv", r.Transport)
	require.Equal(t, r.Path.Dialect, r.Dialect)
	require.Equal(t, runtime.GOOS == "linux", r.Congestion != "")
	for _, p := range []*Percentiles{r.RTT, r.Cold} {
		require.NotNil(t, p)
		require.Positive(t, p.P50)
		require.LessOrEqual(t, p.P50, p.P90)
		require.LessOrEqual(t, p.P90, p.P99)
	}
	require.Positive(t, r.MessagesPerSecond)
	require.Equal(t, s.Size > 0, r.GBps > 0)
	require.InDelta(t, r.MessagesPerSecond*float64(s.Size)/1e9, r.GBps, r.GBps/1e6)
	require.Equal(t, runtime.GOOS != "windows", r.CPUSeconds > 0)
	require.Equal(t, runtime.GOOS != "windows", r.CPUPerTrip > 0)
}

func TestMeasure(t *testing.T) {
	for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
		for _, size := range []int{0, 8, 1001, 200_000} {
			for _, named := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%d/%t", dialect, size, named), func(t *testing.T) {
					s := small(size, named)
					s.Dialect = dialect
					r, err := Go{Child: child(t)}.Measure(t.Context(), s)
					require.NoError(t, err)
					requireSane(t, s, r)
					require.Equal(t, "tensorpipe-go", r.Subject)
					require.Equal(t, "basic", r.Channel)
					require.Equal(t, dialect, r.Dialect)
					require.Equal(t, 2, r.Processes)
				})
			}
		}
	}
}

// TestNoSpinReachesTheTransports tests that with Spec.NoSpin the transports uv and shm are created
// without spinning, and otherwise with their defaults.
func TestNoSpinReachesTheTransports(t *testing.T) {
	for spin, want := range map[bool]map[string]transport.Transport{
		true:  {"uv": uv.New(), "shm": shm.New()},
		false: {"uv": uv.New(uv.WithSpin(0)), "shm": shm.New(shm.WithSpin(0))},
	} {
		p, err := Catalog(nil).profile(Spec{NoSpin: !spin})
		require.NoError(t, err)
		got := map[string]transport.Transport{}
		for _, e := range p.Transports {
			got[e.Name] = e.Transport
		}
		require.Equal(t, want, got, "spin: %t", spin)
	}
}

// TestMeasureWithBusyPolling tests that Spec.BusyPolling reaches the transports uv and shm, and that
// a measurement with it succeeds and has plausible figures.
func TestMeasureWithBusyPolling(t *testing.T) {
	s := small(8, true)
	s.Dialect, s.BusyPolling = pipe.DialectNative, true
	p, err := Catalog(nil).profile(Spec{BusyPolling: true})
	require.NoError(t, err)
	for _, e := range p.Transports {
		require.Equal(t, map[string]transport.Transport{"uv": uv.New(uv.WithBusyPolling()), "shm": shm.New(shm.WithBusyPolling())}[e.Name], e.Transport)
	}
	r, err := Go{Child: child(t)}.Measure(t.Context(), s)
	require.NoError(t, err)
	requireSane(t, s, r)
}

// TestMeasureWithoutSpinning tests that a measurement with Spec.NoSpin succeeds and has plausible
// figures.
func TestMeasureWithoutSpinning(t *testing.T) {
	s := small(8, true)
	s.Dialect, s.NoSpin = pipe.DialectNative, true
	r, err := Go{Child: child(t)}.Measure(t.Context(), s)
	require.NoError(t, err)
	requireSane(t, s, r)
}

// TestMeasureInBatches tests that a measurement of more messages than one batch has succeeds and
// has plausible figures.
func TestMeasureInBatches(t *testing.T) {
	s := small(8, true)
	s.RoundTrips, s.OneWay = batchMessages+1, 2*batchMessages+1
	r, err := Go{Child: child(t)}.Measure(t.Context(), s)
	require.NoError(t, err)
	requireSane(t, s, r)
}

func TestMeasureInOneProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("channel xth is for Linux")
	}
	s := small(100_000, true)
	s.Channels, s.OneProcess = []string{"xth"}, true
	r, err := Go{}.Measure(t.Context(), s)
	require.NoError(t, err)
	requireSane(t, s, r)
	require.Equal(t, "xth", r.Channel)
	require.Equal(t, 1, r.Processes)
}

// requirePeer builds the C++ program. If the compiler or the library is missing it skips the test,
// or fails it if the environment requires interop tests. It fails the test after any other error.
func requirePeer(t testing.TB) {
	t.Helper()
	err := Libtensorpipe{}.Build()
	if errors.Is(err, errors.ErrUnsupported) && os.Getenv(interop.RequireVar) != "1" {
		t.Skip(err)
	}
	require.NoError(t, err)
}

func TestMeasureLibtensorpipe(t *testing.T) {
	requirePeer(t)
	for _, size := range []int{0, 8, 1001, 200_000} {
		for _, named := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%t", size, named), func(t *testing.T) {
				s := small(size, named)
				r, err := Libtensorpipe{}.Measure(t.Context(), s)
				require.NoError(t, err)
				requireSane(t, s, r)
				require.Equal(t, "libtensorpipe", r.Subject)
				require.Equal(t, pipe.DialectCompatible, r.Dialect)
			})
		}
	}
}

// TestClientOfCxxServer tests that a Go client completes a measurement with a C++ server, where
// each end compares the bytes that it receives with those that the other should have sent.
func TestClientOfCxxServer(t *testing.T) {
	requirePeer(t)
	path, err := buildPeer()
	require.NoError(t, err)
	server, err := startProcess(t.Context(), "tpbench server", Program{Path: path, Args: []string{"server", "--listen", "uv://127.0.0.1:0"}})
	require.NoError(t, err)
	url, err := server.line()
	require.NoError(t, err)
	s := small(1001, false)
	require.NoError(t, withServerAt(t, s, url, func(c *client, _ *pipe.Plan) error {
		samples, err := c.measure()
		require.NoError(t, checkSamples(s, samples))
		return err
	}))
	require.NoError(t, server.end())
}

// TestCorruptionIsFound tests that a measurement fails with ErrCorrupt if a byte of a message or of
// an echo is changed, or if messages are in the wrong order.
func TestCorruptionIsFound(t *testing.T) {
	g := Go{Child: child(t)}
	s := small(1001, true)
	for name, run := range map[string]func(*client) error{
		"one way": func(c *client) error {
			if err := c.begin(kindSink, 8); err != nil {
				return err
			}
			c.sources.(*arena).slot(5)[1000] ^= 1
			if err := c.send(8); err != nil {
				return err
			}
			if _, err := expectDone(c.pipe); err != nil {
				return err
			}
			return c.verifyBatch()
		},
		"echo": func(c *client) error {
			if err := c.begin(kindEcho, 8); err != nil {
				return err
			}
			for i := range 8 {
				if err := c.trip(i); err != nil {
					return err
				}
			}
			c.echoes.(*arena).slot(5)[1000] ^= 1
			_, err := c.endTrips(8)
			return err
		},
		"messages in the wrong order": func(c *client) error {
			c.sent[0], c.sent[1] = c.sent[1], c.sent[0]
			_, _, err := c.sendBatch(8)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			end, err := g.start(t.Context(), s, nil)
			require.NoError(t, err)
			err = withServerAt(t, s, end.url, func(c *client, _ *pipe.Plan) error { return run(c) })
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, "differs in the 8 bytes at")
			_ = end.stop() // it may return an error about the aborted pipe
		})
	}
}

// TestServerIsKilled tests that after the server is killed during a batch the pipe fails with
// ErrPeerLost, and rootCause returns the exit error of the server instead.
func TestServerIsKilled(t *testing.T) {
	g := Go{Child: child(t)}
	s := small(8, true)
	end, err := g.start(t.Context(), s, nil)
	require.NoError(t, err)
	err = withServerAt(t, s, end.url, func(c *client, _ *pipe.Plan) error {
		if err := c.begin(kindEcho, 8); err != nil {
			return err
		}
		require.NoError(t, c.trip(0))
		require.NoError(t, end.proc.cmd.Process.Kill())
		for {
			if err := c.trip(1); err != nil {
				return err
			}
		}
	})
	require.ErrorIs(t, err, pipe.ErrPeerLost)
	require.EqualError(t, rootCause(err, end.stop()), "process bench server: signal: killed")
}

func TestMeasureIsInterrupted(t *testing.T) {
	for name, subject := range map[string]Subject{"go": Go{Child: child(t)}, "libtensorpipe": Libtensorpipe{}} {
		t.Run(name, func(t *testing.T) {
			if name == "libtensorpipe" {
				requirePeer(t)
			}
			why := errors.New("enough")
			s := small(8, true)
			s.RoundTrips = maxMessages
			for _, after := range []time.Duration{0, 100 * time.Millisecond} {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(after, func() { cancel(why) })
				_, err := subject.Measure(ctx, s)
				require.ErrorIs(t, err, why)
			}
		})
	}
}
