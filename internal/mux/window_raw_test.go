package mux_test

import (
	"encoding/binary"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

const (
	first = 256 << 10 // the window of a new stream
	trip  = 30 * time.Millisecond
)

// writer is a peer that writes a stream, and may answer what it is asked.
type writer struct {
	t    *testing.T
	conn transport.Stream
	read transport.Stream // the other end of the stream
	open int              // what it may send
}

// newWriter opens stream 1 of a session. It is for bubbles.
func newWriter(t *testing.T, cfg transport.SessionConfig) (transport.Session, *writer) {
	s, peer := hostile(t, cfg, mem.WithBuffer(16<<20))
	w := &writer{t: t, conn: peer, open: first}
	w.say(message(kindCredit, flagSyn, 1, 0, ""))
	var err error
	w.read, err = s.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, message(kindCredit, flagAck, 1, 0, ""), w.hear(), "the window is not for yamux to open")
	return s, w
}

func (w *writer) say(p []byte) {
	_, err := w.conn.Write(p)
	require.NoError(w.t, err)
}

// hear returns the next header that arrives.
func (w *writer) hear() []byte {
	p := make([]byte, 12)
	_, err := io.ReadFull(w.conn, p)
	require.NoError(w.t, err)
	return p
}

// silence checks that nothing arrives any more.
func (w *writer) silence() {
	w.t.Helper()
	require.NoError(w.t, w.conn.SetReadDeadline(time.Now().Add(time.Nanosecond)))
	n, err := w.conn.Read(make([]byte, 1))
	require.Zero(w.t, n, "there is something")
	require.ErrorIs(w.t, err, os.ErrDeadlineExceeded)
	require.NoError(w.t, w.conn.SetReadDeadline(time.Time{}))
}

// send writes bytes of the stream.
func (w *writer) send(n int) {
	for sent := 0; sent < n; sent += first {
		w.say(dataOf(0, 1, string(make([]byte, min(first, n-sent)))))
	}
	w.open -= n
}

// drain has n bytes read at the other end.
func (w *writer) drain(n int) {
	_, err := io.CopyN(io.Discard, w.read, int64(n))
	require.NoError(w.t, err)
}

// granted hears what was granted.
func (w *writer) granted() int {
	w.t.Helper()
	h := w.hear()
	require.Equal(w.t, message(kindCredit, 0, 1, binary.BigEndian.Uint32(h[8:]), ""), h)
	n := int(binary.BigEndian.Uint32(h[8:]))
	w.open += n
	return n
}

// asked hears a question and returns its number.
func (w *writer) asked() uint32 {
	w.t.Helper()
	h := w.hear()
	number := binary.BigEndian.Uint32(h[8:])
	require.Equal(w.t, message(kindPing, flagSyn, 0, number, ""), h)
	return number
}

// answers a question after a round trip.
func (w *writer) answer(number uint32) {
	pass(trip)
	w.say(message(kindPing, flagAck, 0, number, ""))
	synctest.Wait()
}

// step moves half of an empty window, so that the reader grants.
func (w *writer) step() {
	w.t.Helper()
	n := w.open / 2
	w.send(n)
	w.drain(n)
	w.granted()
}

// startle is a step that makes the reader ask, and returns the question.
func (w *writer) startle() (number uint32) {
	w.t.Helper()
	n := w.open / 2
	w.send(n)
	w.drain(n)
	number = w.asked()
	w.granted()
	return number
}

// measured is a writer whose round trip is known.
func measured(t *testing.T, cfg transport.SessionConfig) (transport.Session, *writer) {
	s, w := newWriter(t, cfg)
	w.answer(w.startle())
	require.Equal(t, first, w.open)
	return s, w
}

// A window doubles while half of it is read within four round trips, up to the
// largest; nothing is asked where nothing can grow.
func TestWindowGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purse{size: 1 << 30}
		s, w := measured(t, transport.SessionConfig{Streams: 1, Window: 3 * first, Budget: p})
		for _, size := range []int{2 * first, 3 * first, 3 * first} {
			w.step()
			require.Equal(t, size, w.open)
			require.Equal(t, size-first, p.lent())
		}
		pass(time.Hour)
		w.send(3 * first)
		w.drain(3 * first)
		for w.open < 3*first {
			w.granted()
		}
		w.silence()
		require.NoError(t, s.Close())
		p.requireWhole(t)
	})
}

// A reader that takes longer is not waiting for its writer.
func TestWindowOfSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purse{size: 1 << 30}
		_, w := measured(t, transport.SessionConfig{Streams: 1, Budget: p})
		for range 5 {
			pass(4*trip + time.Millisecond)
			w.step()
			require.Equal(t, first, w.open)
		}
		pass(4 * trip)
		w.step()
		require.Equal(t, 2*first, w.open)
		require.Equal(t, first, p.lent())
	})
}

// One question is under way at a time, and only where its answer is of use.
func TestRoundTripIsMeasuredWhenNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purse{} // refuses, so that there is always something to grow
		_, w := newWriter(t, transport.SessionConfig{Streams: 1, Budget: p})
		w.silence()
		number := w.startle()
		for range 3 {
			pass(time.Minute)
			w.say(message(kindPing, flagAck, 0, number+1, "")) // not the answer
			w.step()
		}
		require.Zero(t, p.refused, "nothing is known, nothing grows")
		w.answer(number)
		w.answer(number) // once more
		w.step()
		w.silence()
		require.Equal(t, 1, p.refused)
		pass(time.Second)
		require.NotEqual(t, number, w.startle())
		require.Equal(t, 2, p.refused, "what is known is good until there is better")
	})
}

// What is left to read behind the end of a session takes nothing more.
func TestNothingIsTakenBehindTheEndOfTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purse{size: 1 << 30}
		s, w := measured(t, transport.SessionConfig{Streams: 1, Budget: p})
		w.send(first)
		require.NoError(t, w.conn.CloseWrite())
		require.Equal(t, io.EOF, ended(t, s))
		w.drain(first)
		w.silence()
		require.Zero(t, p.most)
	})
}

// A window that the budget refuses stays what it is, and its stream works.
func TestWindowWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &purse{size: first - 1}
		_, w := measured(t, transport.SessionConfig{Streams: 1, Budget: p})
		for range 10 {
			w.step()
			require.Equal(t, first, w.open)
		}
		require.Equal(t, 10, p.refused)
		require.Zero(t, p.most)
	})
}

// What is more than a window allows ends the session with the header that
// announces it, before there is memory for its body; whether the stream was
// accepted or not, and however far the window has grown.
func TestWindowOverrun(t *testing.T) {
	overrun := func(t *testing.T, s transport.Session, w *writer) {
		w.send(w.open)
		synctest.Wait()
		require.NoError(t, s.Err(), "so much is allowed")
		w.say(message(kindData, 0, 1, 1, ""))
		require.ErrorIs(t, ended(t, s), transport.ErrFrame)
		require.ErrorContains(t, s.Err(), "more bytes on stream 1 than its window allows")
		require.NoError(t, s.Close())
	}
	t.Run("not accepted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := hostile(t, transport.SessionConfig{Streams: 1}, mem.WithBuffer(first+1000))
			w := &writer{t: t, conn: peer, open: first}
			w.say(message(kindCredit, flagSyn, 1, 0, ""))
			overrun(t, s, w)
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := hostile(t, transport.SessionConfig{}, mem.WithBuffer(first+1000))
			w := &writer{t: t, conn: peer}
			w.say(message(kindCredit, flagSyn, 1, 0, ""))
			require.Equal(t, message(kindCredit, flagRst, 1, 0, ""), w.hear())
			w.send(2 * first)
			synctest.Wait()
			require.NoError(t, s.Err(), "it is thrown away as it comes")
			require.Zero(t, mux.Windows(s))
		})
	})
	for grown := range 5 {
		t.Run("grown", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &purse{size: 1 << 30}
				s, w := measured(t, transport.SessionConfig{Streams: 1, Budget: p})
				for range grown {
					w.step()
				}
				require.Equal(t, first<<grown, w.open)
				overrun(t, s, w)
				p.requireWhole(t)
			})
		})
	}
}

// What comes for a stream that was closed here is thrown away, whatever its
// size; the peer may not know yet.
func TestBytesForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newWriter(t, transport.SessionConfig{Streams: 2})
		w.send(1000)
		require.NoError(t, w.read.Close())
		require.Equal(t, message(kindCredit, flagFin, 1, 0, ""), w.hear())
		require.Equal(t, message(kindCredit, flagRst, 1, 0, ""), w.hear())
		w.send(2 * first)
		w.say(dataOf(flagSyn, 3, "x"))
		st, err := s.Accept(t.Context())
		require.NoError(t, err)
		_, err = io.ReadFull(st, make([]byte, 1))
		require.NoError(t, err)
	})
}

// A peer that has written all is granted nothing more.
func TestNothingIsGrantedBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newWriter(t, transport.SessionConfig{Streams: 1})
		w.send(first)
		w.say(message(kindData, flagFin, 1, 0, ""))
		synctest.Wait()
		n, err := io.Copy(io.Discard, w.read)
		require.NoError(t, err)
		require.EqualValues(t, first, n)
		w.silence()
	})
}
