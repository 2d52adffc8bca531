package ringsession_test

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// waitConfigs are settings with which the calls of a stream must behave in the same way.
var waitConfigs = map[string]wait.Config{
	"blocking": {Spin: wait.Spin}, "busy": {Spin: wait.Spin, Busy: true}, "only busy": {Busy: true},
}

// withEachWait runs test with the two ends of a stream that wait in each pair of ways, with one and with several
// processors.
func withEachWait(t *testing.T, test func(t *testing.T, one, other transport.Poller)) {
	for near, atClient := range waitConfigs {
		for far, atServer := range waitConfigs {
			for _, procs := range []int{1, 4} {
				t.Run(near+" and "+far, func(t *testing.T) {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
					cfg := transport.SessionConfig{MaxStreams: 1}
					client, server := waitingSessions(t, cfg, cfg, atClient, atServer)
					one, other := open(t, client, server)
					test(t, one.(transport.Poller), other.(transport.Poller))
				})
			}
		}
	}
}

// A call that waits continues when the other end writes, reads, or closes.
func TestWaitsEnd(t *testing.T) {
	withEachWait(t, func(t *testing.T, one, other transport.Poller) {
		p := make([]byte, 1)
		for range 3 {
			read := testwait.StartBlocked(t, "block", func() error { _, err := other.Read(p); return err })
			_, err := one.Write([]byte("x"))
			require.NoError(t, err)
			require.NoError(t, testwait.Finish(t, read))

			waited := testwait.StartBlocked(t, "Wait", func() bool { other.Wait(); return true })
			_, err = one.Write([]byte("x"))
			require.NoError(t, err)
			testwait.Finish(t, waited)
			_, err = other.TryRead(p)
			require.NoError(t, err)
		}
		written := testwait.StartBlocked(t, "block", func() error { _, err := one.Write(make([]byte, 8<<20)); return err })
		_, err := io.CopyN(io.Discard, other, 8<<20)
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, written))

		waited := testwait.StartBlocked(t, "Wait", func() bool { other.Wait(); return true })
		require.NoError(t, one.CloseWrite())
		testwait.Finish(t, waited)
		written = testwait.StartBlocked(t, "block", func() error { _, err := other.Write(make([]byte, 8<<20)); return err })
		require.NoError(t, one.Close())
		require.Error(t, testwait.Finish(t, written))
	})
}

// A call that waits returns at a deadline that is set while it waits, after Wake, and when its own end is closed. Later
// waits behave as the first one did.
func TestWaitsAreInterrupted(t *testing.T) {
	withEachWait(t, func(t *testing.T, one, other transport.Poller) {
		read := func() error { _, err := other.Read(make([]byte, 1)); return err }
		write := func() error { _, err := other.Write(make([]byte, 8<<20)); return err }
		for range 3 {
			for _, c := range []struct {
				set  func(time.Time) error
				call func() error
			}{{other.SetReadDeadline, read}, {other.SetWriteDeadline, write}} {
				for _, until := range []time.Duration{-time.Hour, 2 * time.Millisecond} {
					called := testwait.StartBlocked(t, "block", c.call)
					require.NoError(t, c.set(time.Now().Add(until)))
					require.ErrorIs(t, testwait.Finish(t, called), os.ErrDeadlineExceeded)
					require.NoError(t, c.set(time.Time{}))
				}
			}
			waited := testwait.StartBlocked(t, "Wait", func() bool { other.Wait(); return true })
			other.Wake()
			testwait.Finish(t, waited)
		}
		reading := testwait.StartBlocked(t, "block", read)
		writing := testwait.StartBlocked(t, "block", write)
		require.NoError(t, other.Close())
		require.ErrorIs(t, testwait.Finish(t, reading), transport.ErrClosed)
		require.ErrorIs(t, testwait.Finish(t, writing), transport.ErrClosed)
	})
}

// While one goroutine waits, others that poll and read in turn lose no bytes, and bytes that come when none polls wake
// the one that waits.
func TestWaitBesideOtherReaders(t *testing.T) {
	withEachWait(t, func(t *testing.T, one, other transport.Poller) {
		const messages = 300
		var want []byte
		for i := range messages {
			want = append(want, bytes.Repeat([]byte{byte(i)}, 1+i%100)...)
		}
		turn := make(chan int, 1) // how many bytes were read
		turn <- 0
		got := make([]byte, len(want))
		// receive reads the bytes that have arrived, and reports whether the last one has.
		receive := func(poll bool) (last bool, err error) {
			n := <-turn
			defer func() { turn <- n }()
			if n == len(want) {
				return true, nil
			}
			if poll && !other.PollReadable(n%2 == 0) {
				return false, nil
			}
			k, err := other.TryRead(got[n:])
			n += k
			if poll {
				other.Arm()
			}
			if n == len(want) {
				other.Wake()
			}
			return n == len(want), err
		}
		waiting := testwait.Start(func() error {
			for {
				other.Wait()
				if last, err := receive(false); last || err != nil {
					return err
				}
			}
		})
		polling := testwait.Start(func() error {
			for range messages / 2 {
				if last, err := receive(true); last || err != nil {
					return err
				}
				runtime.Gosched()
			}
			return nil
		})
		for rest, i := want, 0; i < messages; i++ {
			n, err := one.Write(rest[:1+i%100])
			require.NoError(t, err)
			rest = rest[n:]
			if i%10 == 0 {
				runtime.Gosched()
			}
		}
		require.NoError(t, testwait.Finish(t, polling))
		require.NoError(t, testwait.Finish(t, waiting))
		require.True(t, bytes.Equal(want, got))
	})
}

// A call that waits fails when the process at the other end is killed.
func TestKilledPeerOfWaits(t *testing.T) {
	for name, waits := range waitConfigs {
		for _, procs := range []int{1, 4} {
			for _, method := range []string{"block", "Wait"} {
				t.Run(name+" "+method, func(t *testing.T) {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
					s, cmd := startPeerOf(t, "echo 1", waits)
					_, err := s.Write([]byte("x"))
					require.NoError(t, err)
					_, err = io.ReadFull(s, make([]byte, 1))
					require.NoError(t, err)
					done := testwait.StartBlocked(t, method, func() error {
						if method == "Wait" {
							s.(transport.Poller).Wait()
						}
						_, err := s.Read(make([]byte, 1))
						return err
					})
					require.NoError(t, cmd.Process.Kill())
					require.ErrorIs(t, testwait.Finish(t, done), io.EOF)
				})
			}
		}
	}
}

// A call that waits with busy polling requests no doorbell.
func TestBusyPollingNeedsNoDoorbells(t *testing.T) {
	cfg := transport.SessionConfig{MaxStreams: 1}
	client, server := waitingSessions(t, cfg, cfg, wait.Config{Spin: wait.Spin}, wait.Config{Busy: true})
	one, other := open(t, client, server)
	for range 10 {
		read := testwait.StartBlocked(t, "block", func() error { _, err := other.Read(make([]byte, 1)); return err })
		require.False(t, client.FirstReaderIsBlocked())
		_, err := one.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, read))
	}
}
