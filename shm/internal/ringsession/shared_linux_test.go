package ringsession_test

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// link is a stream of a session of its own.
type link struct {
	client          *ringsession.Session
	writer, reader  transport.Poller
	doorbellIsAsked func() bool // by the reader
}

// links returns n links that have input in turn, so that no reader may spin alone.
func links(t *testing.T, n int, waits wait.Config) []link {
	all := make([]link, n)
	for i := range all {
		cfg := transport.SessionConfig{MaxStreams: 1}
		client, server := waitingSessions(t, cfg, cfg, waits, waits)
		one, other := open(t, client, server)
		all[i] = link{client, one.(transport.Poller), other.(transport.Poller), client.FirstReaderIsBlocked}
	}
	for range 2 {
		for _, l := range all {
			l.write(t)
			l.read(t)
		}
	}
	return all
}

func (l link) write(t *testing.T) {
	t.Helper()
	n, err := l.writer.TryWrite([]byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func (l link) read(t *testing.T) {
	t.Helper()
	n, err := l.reader.TryRead(make([]byte, 2))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// startWait calls Wait of the reader, which blocks and requests a doorbell.
func (l link) startWait(t *testing.T) <-chan bool {
	t.Helper()
	done := testwait.StartBlocked(t, "Wait", func() bool { l.reader.Wait(); return true })
	require.True(t, l.doorbellIsAsked())
	return done
}

// A goroutine that polls one stream while others have input polls for those that wait too. It returns once one
// of them has input. Meanwhile no doorbell is requested for any of them, and afterwards for those that still wait.
func TestPollServesOthers(t *testing.T) {
	all := links(t, 4, wait.Config{Spin: testwait.Limit})
	polled, woken, still, late := all[0], all[1], all[2], all[3]
	wokenDone, stillDone := woken.startWait(t), still.startWait(t)
	poll := testwait.Start(func() bool { return polled.reader.PollReadable(false) })
	for woken.doorbellIsAsked() || still.doorbellIsAsked() {
		runtime.Gosched()
	}
	lateDone := testwait.StartBlocked(t, "Wait", func() bool { late.reader.Wait(); return true })
	for late.doorbellIsAsked() { // Wait begins with it
		runtime.Gosched()
	}
	woken.write(t)
	testwait.Finish(t, wokenDone)
	require.False(t, testwait.Finish(t, poll))
	woken.read(t)
	for _, l := range []link{polled, still, late} {
		require.True(t, l.doorbellIsAsked())
	}

	still.write(t) // with a doorbell
	testwait.Finish(t, stillDone)
	still.read(t)
	poll = testwait.Start(func() bool { return polled.reader.PollReadable(false) })
	for late.doorbellIsAsked() {
		runtime.Gosched()
	}
	polled.write(t)
	require.True(t, testwait.Finish(t, poll))
	require.True(t, late.doorbellIsAsked())
	require.NoError(t, late.writer.Close())
	testwait.Finish(t, lateDone)
}

// Messages at random on several streams, each with a goroutine that waits and one that polls, all arrive, with any
// number of processors.
func TestSharedPollsLoseNothing(t *testing.T) {
	const messages = 2000
	for _, procs := range []int{1, 2, 4} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		all := links(t, 5, wait.Config{Spin: wait.Spin})
		var ended atomic.Bool
		var readers []<-chan bool
		arrived := make(chan int, len(all))
		for i, l := range all {
			input := make(chan struct{}, 1)
			readers = append(readers, testwait.Start(func() bool {
				for !ended.Load() {
					l.reader.Wait()
					select {
					case input <- struct{}{}:
					default:
						runtime.Gosched() // until the bytes are read
					}
				}
				close(input)
				return true
			}), testwait.Start(func() bool {
				for range input {
					for {
						n, err := l.reader.TryRead(make([]byte, 1))
						if n == 1 {
							arrived <- i
						}
						if err != nil || n == 0 && !l.reader.PollReadable(false) {
							break
						}
						l.reader.Arm()
					}
				}
				return true
			}))
		}
		for range messages {
			i := rand.IntN(len(all))
			all[i].write(t)
			require.Equal(t, i, testwait.Finish(t, arrived))
		}
		ended.Store(true)
		for _, l := range all {
			require.NoError(t, l.writer.Close())
		}
		for _, r := range readers {
			testwait.Finish(t, r)
		}
	}
}
