package ringsession_test

import (
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
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
	assert.NoError(t, err)
	assert.Equal(t, 1, n)
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

// A goroutine that polls one stream while others have input polls for those that wait too. Meanwhile no doorbell is
// requested for any of them, and afterwards for those that still wait.
func TestPollServesOthers(t *testing.T) {
	all := links(t, 4, wait.Config{Spin: testwait.Limit})
	polled, woken, still, late := all[0], all[1], all[2], all[3]
	wokenDone, stillDone := woken.startWait(t), still.startWait(t)
	var ended atomic.Bool
	poll := testwait.Start(func() bool {
		for !ended.Load() { // some polls may be too short, after others that found nothing
			if polled.reader.PollReadable(false) {
				return true
			}
		}
		return false
	})
	for woken.doorbellIsAsked() || still.doorbellIsAsked() {
		runtime.Gosched()
	}
	lateDone := testwait.StartBlocked(t, "Wait", func() bool { late.reader.Wait(); return true })
	for late.doorbellIsAsked() { // Wait begins with it
		runtime.Gosched()
	}
	woken.write(t)
	testwait.Finish(t, wokenDone)
	ended.Store(true)
	polled.reader.Interrupt()
	require.False(t, testwait.Finish(t, poll))
	woken.read(t)
	for _, l := range []link{polled, still, late} {
		require.True(t, l.doorbellIsAsked())
	}

	still.write(t) // with a doorbell
	testwait.Finish(t, stillDone)
	still.read(t)
	stillDone = still.startWait(t)
	poll = testwait.Start(func() bool {
		for !polled.reader.PollReadable(false) {
		}
		return true
	})
	for late.doorbellIsAsked() || still.doorbellIsAsked() {
		runtime.Gosched()
	}
	polled.write(t)
	require.True(t, testwait.Finish(t, poll))
	require.True(t, late.doorbellIsAsked())
	require.True(t, still.doorbellIsAsked())
	still.write(t)
	testwait.Finish(t, stillDone)
	require.NoError(t, late.writer.Close())
	testwait.Finish(t, lateDone)
}

// Bytes on several streams at once, each with a goroutine that waits and one that polls, all arrive, with any
// number of processors, and so does the end of each stream or session.
func TestSharedPollsLoseNothing(t *testing.T) {
	const messages = 500
	for _, procs := range []int{1, 2, 4} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		var readers, writers []<-chan bool
		for i, l := range links(t, 5, wait.Config{Spin: wait.Spin}) {
			arrived := make(chan struct{}, 1)
			readers = append(readers, l.readAll(t, arrived)...)
			writers = append(writers, testwait.Start(func() bool {
				for range messages {
					l.write(t)
					<-arrived
					for range rand.IntN(3) {
						runtime.Gosched()
					}
				}
				if i%2 == 0 {
					return assert.NoError(t, l.writer.Close())
				}
				return assert.NoError(t, l.client.Close())
			}))
		}
		for _, done := range append(writers, readers...) {
			testwait.Finish(t, done)
		}
	}
}

// readAll reads until the stream or the session ends, on two goroutines, of which one waits and one polls, as those of
// a pipe do. It sends a value to arrived for each byte.
func (l link) readAll(t *testing.T, arrived chan<- struct{}) []<-chan bool {
	input := make(chan struct{}, 1)
	var ended atomic.Bool
	waits := testwait.Start(func() bool {
		for !ended.Load() {
			l.reader.Wait()
			select {
			case input <- struct{}{}:
			default:
				runtime.Gosched() // until the bytes are read
			}
		}
		return true
	})
	polls := testwait.Start(func() bool {
		defer l.reader.Arm() // for Wait
		defer ended.Store(true)
		for range input {
			for readable := true; readable; {
				n, err := l.reader.TryRead(make([]byte, 1))
				if err != nil {
					return assert.ErrorIs(t, err, io.EOF)
				}
				if n == 1 {
					arrived <- struct{}{}
				} else {
					readable = l.reader.PollReadable(false)
				}
				if readable && rand.IntN(2) == 0 {
					l.reader.Arm()
				}
			}
		}
		return true
	})
	return []<-chan bool{waits, polls}
}
