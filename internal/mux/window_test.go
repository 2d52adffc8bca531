package mux_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// sessionsOver returns the two ends of a session over a simulated link to which the rules apply,
// and the link. client and server are their configurations. The sessions are closed when the test
// ends.
func sessionsOver(t *testing.T, client, server transport.SessionConfig, rules ...simnet.Rule) (c, s transport.Session, link *simnet.Link) {
	t.Helper()
	network := simnet.New(mem.New(nil, mem.WithBuffer(64<<20)), rules...)
	l, err := network.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	d, err := network.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	a, err := l.Accept(t.Context())
	require.NoError(t, err)
	client.Client = true
	c, err = d.(transport.Multiplexer).Multiplex(client)
	require.NoError(t, err)
	s, err = a.(transport.Multiplexer).Multiplex(server)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c, s, network.Links()[0]
}

// startWriter starts a goroutine that writes n bytes to a stream and then calls CloseWrite. The
// channel receives the error.
func startWriter(to transport.Stream, n int) <-chan error {
	done := make(chan error, 1)
	go func() {
		p := make([]byte, 1<<20)
		var err error
		for n > 0 && err == nil {
			var k int
			k, err = to.Write(p[:min(n, len(p))])
			n -= k
		}
		done <- errors.Join(err, to.CloseWrite())
	}()
	return done
}

// consume starts a goroutine that reads a stream to its end. The channel receives the error, which
// is not nil if other than n bytes came.
func consume(from transport.Stream, n int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		got, err := io.Copy(io.Discard, from)
		if err == nil && got != n {
			err = fmt.Errorf("%d bytes came, not %d", got, n)
		}
		done <- err
	}()
	return done
}

// Over a link with a long delay, after a few round trips, a stream reaches the throughput that its
// largest window permits.
func TestThroughputOverLongLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay, size, window = 30 * time.Millisecond, 64 << 20, 4 << 20
		p := &recordingBudget{size: window}
		c, s, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1, Budget: p}, simnet.Delay(delay))
		o, a := streams(t, c, s)
		began := time.Now()
		written := startWriter(o, size)
		n, err := io.Copy(io.Discard, a)
		require.NoError(t, err)
		require.EqualValues(t, size, n)
		require.NoError(t, <-written)
		require.Equal(t, window-first, p.maxWindow)

		trips := int(time.Since(began) / (2 * delay)) // of virtual time
		const full, ramp = size / window, 8
		require.LessOrEqual(t, trips, full+ramp)
		require.GreaterOrEqual(t, trips, full-1, "the window holds")
	})
}

// Over a link with a long delay, the writer of a slow reader waits, and the window keeps its first
// size.
func TestSlowReaderOverLongLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 30 * time.Millisecond
		p := &recordingBudget{size: 1 << 30}
		c, s, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1, Budget: p}, simnet.Delay(delay))
		o, a := streams(t, c, s)
		pass(10 * delay)
		written := startWriter(o, 4<<20)
		for range 64 {
			pass(5 * delay)
			_, err := io.ReadFull(a, make([]byte, 64<<10))
			require.NoError(t, err)
		}
		require.NoError(t, <-written)
		require.Zero(t, p.maxWindow)
	})
}

// grownStream is a session with a stream whose window has grown.
type grownStream struct {
	session transport.Session
	read    transport.Stream
	peer    transport.Stream // the writer of the stream
	link    *simnet.Link
}

// ends are the ways in which a stream or its session ends.
var ends = map[string]func(t *testing.T, s grownStream){
	"closed": func(t *testing.T, s grownStream) {
		require.NoError(t, s.read.Close())
		require.NoError(t, s.read.Close())
	},
	"closed behind the end of the peer": func(t *testing.T, s grownStream) {
		require.NoError(t, s.peer.CloseWrite())
		synctest.Wait()
		require.NoError(t, s.read.CloseWrite())
		require.NoError(t, s.read.Close())
	},
	"reset by the peer": func(t *testing.T, s grownStream) {
		require.NoError(t, s.peer.Close())
		synctest.Wait()
		require.NoError(t, s.read.Close())
	},
	"session closed": func(t *testing.T, s grownStream) {
		require.NoError(t, s.session.Close())
		require.NoError(t, s.read.Close())
	},
	"session closed behind the stream": func(t *testing.T, s grownStream) {
		require.NoError(t, s.read.Close())
		require.NoError(t, s.session.Close())
	},
	"connection cut": func(t *testing.T, s grownStream) {
		s.link.Cut()
		<-s.session.Done()
		require.NoError(t, s.session.Close())
	},
}

// All bytes that windows have acquired from the budget are released exactly once.
func TestBudgetIsReleased(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &recordingBudget{size: 1 << 30}
				c, s, link := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1, Budget: p})
				o, a := streams(t, c, s)
				written := make(chan error, 1)
				go func() { _, err := o.Write(make([]byte, 20<<20)); written <- err }()
				_, err := io.CopyN(io.Discard, a, 7<<20)
				require.NoError(t, err)
				synctest.Wait()
				require.NotZero(t, p.inUse())
				end(t, grownStream{session: s, read: a, peer: o, link: link})
				synctest.Wait()
				p.requireReleased(t)
				require.Zero(t, mux.Windows(s))
				if name != "session closed" && name != "connection cut" { // with which all goes
					require.Zero(t, mux.SendWindows(s))
				}
				c.Close()
				require.Error(t, <-written)
			})
		})
	}
}

// Windows of several streams acquire from a shared budget until it is used up. Streams whose
// windows get nothing complete too.
func TestStreamsCompete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, size = 30, 3 << 20
		p := &recordingBudget{size: 3 << 20}
		cfg := transport.SessionConfig{MaxStreams: many, Budget: p}
		c, s, _ := sessionsOver(t, cfg, cfg, simnet.Delay(time.Millisecond))
		var written, read []<-chan error
		for range many {
			o, a := streams(t, c, s)
			written = append(written, startWriter(o, size), startWriter(a, size))
			read = append(read, consume(a, size), consume(o, size))
		}
		for i := range read {
			require.NoError(t, <-read[i])
			require.NoError(t, <-written[i])
		}
		require.LessOrEqual(t, p.maxWindow, p.size)
		require.Greater(t, p.maxWindow, p.size-first)
		require.NotZero(t, p.refusals)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		p.requireReleased(t)
	})
}

// A writer completes however its stream is read. If it did not, virtual time would stop, and the
// test would fail.
func TestWriterCompletes(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			p := &recordingBudget{size: r.IntN(8 << 20)}
			cfg := transport.SessionConfig{MaxStreams: 1, Window: r.IntN(8 << 20), Budget: p}
			c, s, _ := sessionsOver(t, transport.SessionConfig{}, cfg, simnet.Delay(time.Duration(r.IntN(3))*time.Millisecond))
			o, a := streams(t, c, s)
			size := 1<<20 + r.IntN(8<<20)
			written := startWriter(o, size)
			require.Equal(t, size, readAtRandom(t, a, r))
			require.NoError(t, <-written)
			require.NoError(t, a.Close())
			synctest.Wait()
			require.LessOrEqual(t, p.maxWindow, p.size)
			p.requireReleased(t)
		})
	}
}

// readAtRandom reads a stream to its end and returns the number of bytes: few or many at a time, at
// once or after a while, with deadlines that have passed or will pass.
func readAtRandom(t *testing.T, st transport.Stream, r *rand.Rand) (sum int) {
	buf := make([]byte, 1<<20)
	for {
		switch r.IntN(4) {
		case 0:
			st.SetReadDeadline(time.Unix(1, 0))
		case 1:
			st.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(3000)) * time.Microsecond))
		case 2:
			pass(time.Duration(r.IntN(5000)) * time.Microsecond)
		}
		n, err := st.Read(buf[:1+r.IntN(1<<r.IntN(21))])
		sum += n
		if err == io.EOF {
			return sum
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			st.SetReadDeadline(time.Time{})
			continue
		}
		require.NoError(t, err)
	}
}

// A session has windows only for streams that are in use.
func TestWindowsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1})
		for range 100 {
			o, a := streams(t, c, s)
			exchangeMessage(t, o, a)
			require.NoError(t, a.Close())
			require.NoError(t, o.Close())
			synctest.Wait()
			require.Zero(t, mux.Windows(c))
			require.Zero(t, mux.Windows(s))
		}
	})
}

// TestGrowWindow checks that GrowWindow makes the peer's window larger at once, as far as the limit of a window and
// the budget permit, and that the bytes come back to the budget.
func TestGrowWindow(t *testing.T) {
	for _, c := range []struct{ budget, grow, want int }{
		{64 << 20, 1 << 20, 1 << 20}, {64 << 20, 64 << 20, 4<<20 - 256<<10}, {1 << 20, 1<<20 + 1, 0}, {64 << 20, 0, 0},
	} {
		budget := &recordingBudget{size: c.budget}
		synctest.Test(t, func(t *testing.T) {
			client, server, _ := sessionsOver(t, transport.SessionConfig{}, transport.SessionConfig{MaxStreams: 1, Budget: budget})
			opened, accepted := streams(t, client, server)
			sender, receiver := opened.(transport.WindowedStream), accepted.(transport.WindowedStream)
			_, err := opened.Write([]byte{0})
			require.NoError(t, err)
			synctest.Wait()
			before := sender.SendWindow()
			receiver.GrowWindow(c.grow)
			synctest.Wait()
			require.Equal(t, before+c.want, sender.SendWindow())
			require.Equal(t, c.want, budget.inUse())
			n := 0 // the peer accepts that many bytes although nothing is read
			for p := make([]byte, 100_000); ; synctest.Wait() {
				k, err := opened.TryWrite(p)
				require.NoError(t, err)
				if n += k; k == 0 {
					break
				}
			}
			require.Equal(t, before+c.want, n)
			require.NoError(t, accepted.Close())
			receiver.GrowWindow(1000) // it has no effect any more
			require.NoError(t, server.Close())
		})
		budget.requireReleased(t)
	}
}
