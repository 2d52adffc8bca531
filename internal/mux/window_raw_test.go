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

// writer is a peer that writes a stream, and may reply to pings.
type writer struct {
	t    *testing.T
	conn transport.Stream
	read transport.Stream // the other end of the stream
	open int              // bytes that it may send
}

// newWriter returns a session with the configuration cfg, and a writer that has opened stream 1 to
// the session from a raw peer. The caller runs in a bubble of testing/synctest.
func newWriter(t *testing.T, cfg transport.SessionConfig) (transport.Session, *writer) {
	s, peer := rawSession(t, cfg, mem.WithBuffer(16<<20))
	w := &writer{t: t, conn: peer, open: first}
	w.write(message(kindCredit, flagSyn, 1, 0, ""))
	var err error
	w.read, err = s.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, message(kindCredit, flagAck, 1, 0, ""), w.readHeader(), "the window is not for yamux to open")
	return s, w
}

func (w *writer) write(p []byte) {
	_, err := w.conn.Write(p)
	require.NoError(w.t, err)
}

// readHeader reads the next message of the session, which must be a header only, and returns its 12
// bytes.
func (w *writer) readHeader() []byte {
	p := make([]byte, 12)
	_, err := io.ReadFull(w.conn, p)
	require.NoError(w.t, err)
	return p
}

// expectNothing checks that the session has sent no more messages. It passes a nanosecond of
// virtual time.
func (w *writer) expectNothing() {
	w.t.Helper()
	require.NoError(w.t, w.conn.SetReadDeadline(time.Now().Add(time.Nanosecond)))
	n, err := w.conn.Read(make([]byte, 1))
	require.Zero(w.t, n, "there is something")
	require.ErrorIs(w.t, err, os.ErrDeadlineExceeded)
	require.NoError(w.t, w.conn.SetReadDeadline(time.Time{}))
}

// send writes n bytes on the stream, in messages that are not too long, and takes them from w.open,
// the rest of the window.
func (w *writer) send(n int) {
	for sent := 0; sent < n; sent += first {
		w.write(dataFrame(0, 1, string(make([]byte, min(first, n-sent)))))
	}
	w.open -= n
}

// drain reads n bytes of the stream at the session and discards them.
func (w *writer) drain(n int) {
	_, err := io.CopyN(io.Discard, w.read, int64(n))
	require.NoError(w.t, err)
}

// readCredit reads a message of the session, which must be credit for the stream, adds the credit
// to w.open, and returns it.
func (w *writer) readCredit() int {
	w.t.Helper()
	h := w.readHeader()
	require.Equal(w.t, message(kindCredit, 0, 1, binary.BigEndian.Uint32(h[8:]), ""), h)
	n := int(binary.BigEndian.Uint32(h[8:]))
	w.open += n
	return n
}

// pinged reads a message of the session, which must be a ping request, and returns its number.
func (w *writer) pinged() uint32 {
	w.t.Helper()
	h := w.readHeader()
	number := binary.BigEndian.Uint32(h[8:])
	require.Equal(w.t, message(kindPing, flagSyn, 0, number, ""), h)
	return number
}

// answer sends the reply to the ping request with that number, one round trip of virtual time
// later, and waits until the session has handled it.
func (w *writer) answer(number uint32) {
	pass(trip)
	w.write(message(kindPing, flagAck, 0, number, ""))
	synctest.Wait()
}

// moveHalfWindow writes half of the bytes that the window permits, reads them at the session, and
// reads the credit that the session then grants.
func (w *writer) moveHalfWindow() {
	w.t.Helper()
	n := w.open / 2
	w.send(n)
	w.drain(n)
	w.readCredit()
}

// moveUntilPing writes half of the bytes that the window permits and reads them at the session,
// which then sends a ping request and credit. It reads both and returns the number of the request.
func (w *writer) moveUntilPing() (number uint32) {
	w.t.Helper()
	n := w.open / 2
	w.send(n)
	w.drain(n)
	number = w.pinged()
	w.readCredit()
	return number
}

// newMeasuredWriter is newWriter for a session that has measured the round trip, so that windows
// can grow.
func newMeasuredWriter(t *testing.T, cfg transport.SessionConfig) (transport.Session, *writer) {
	s, w := newWriter(t, cfg)
	w.answer(w.moveUntilPing())
	require.Equal(t, first, w.open)
	return s, w
}

// A window doubles whenever half of it is read within four round trips, up to the largest size. No
// ping is sent once no window can grow.
func TestWindowGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &recordingBudget{size: 1 << 30}
		s, w := newMeasuredWriter(t, transport.SessionConfig{MaxStreams: 1, Window: 3 * first, Budget: p})
		for _, size := range []int{2 * first, 3 * first, 3 * first} {
			w.moveHalfWindow()
			require.Equal(t, size, w.open)
			require.Equal(t, size-first, p.inUse())
		}
		pass(time.Hour)
		w.send(3 * first)
		w.drain(3 * first)
		for w.open < 3*first {
			w.readCredit()
		}
		w.expectNothing()
		require.NoError(t, s.Close())
		p.requireReleased(t)
	})
}

// The window of a stream does not grow if its reader is slower than four round trips, since the
// reader then does not wait for its writer.
func TestWindowOfSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &recordingBudget{size: 1 << 30}
		_, w := newMeasuredWriter(t, transport.SessionConfig{MaxStreams: 1, Budget: p})
		for range 5 {
			pass(4*trip + time.Millisecond)
			w.moveHalfWindow()
			require.Equal(t, first, w.open)
		}
		pass(4 * trip)
		w.moveHalfWindow()
		require.Equal(t, 2*first, w.open)
		require.Equal(t, first, p.inUse())
	})
}

// At most one ping is in progress. None is sent while a recent measurement exists or no window
// could grow.
func TestRoundTripIsMeasuredWhenNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &recordingBudget{} // refuses everything, so that windows always want to grow
		_, w := newWriter(t, transport.SessionConfig{MaxStreams: 1, Budget: p})
		w.expectNothing()
		number := w.moveUntilPing()
		for range 3 {
			pass(time.Minute)
			w.write(message(kindPing, flagAck, 0, number+1, "")) // not the answer
			w.moveHalfWindow()
		}
		require.Zero(t, p.refusals, "nothing is known, nothing grows")
		w.answer(number)
		w.answer(number) // once more
		w.moveHalfWindow()
		w.expectNothing()
		require.Equal(t, 1, p.refusals)
		pass(time.Second)
		require.NotEqual(t, number, w.moveUntilPing())
		require.Equal(t, 2, p.refusals, "what is known is good until there is better")
	})
}

// Reads after the end of a session acquire nothing from the budget.
func TestNoBudgetAfterEndOfSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &recordingBudget{size: 1 << 30}
		s, w := newMeasuredWriter(t, transport.SessionConfig{MaxStreams: 1, Budget: p})
		w.send(first)
		require.NoError(t, w.conn.CloseWrite())
		require.Equal(t, io.EOF, waitEnd(t, s))
		w.drain(first)
		w.expectNothing()
		require.Zero(t, p.maxWindow)
	})
}

// If the budget has no bytes for a window, the window keeps its size, and its stream works.
func TestWindowWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &recordingBudget{size: first - 1}
		_, w := newMeasuredWriter(t, transport.SessionConfig{MaxStreams: 1, Budget: p})
		for range 10 {
			w.moveHalfWindow()
			require.Equal(t, first, w.open)
		}
		require.Equal(t, 10, p.refusals)
		require.Zero(t, p.maxWindow)
	})
}

// A message that exceeds a window ends the session when its header arrives, before memory for its
// body is allocated, whether the stream was accepted or not, and however far the window has grown.
func TestWindowOverrun(t *testing.T) {
	overrun := func(t *testing.T, s transport.Session, w *writer) {
		w.send(w.open)
		synctest.Wait()
		require.NoError(t, s.Err(), "so much is allowed")
		w.write(message(kindData, 0, 1, 1, ""))
		require.ErrorIs(t, waitEnd(t, s), transport.ErrFrame)
		require.ErrorContains(t, s.Err(), "more bytes on stream 1 than its window allows")
		require.NoError(t, s.Close())
	}
	t.Run("not accepted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1}, mem.WithBuffer(first+1000))
			w := &writer{t: t, conn: peer, open: first}
			w.write(message(kindCredit, flagSyn, 1, 0, ""))
			overrun(t, s, w)
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, peer := rawSession(t, transport.SessionConfig{}, mem.WithBuffer(first+1000))
			w := &writer{t: t, conn: peer}
			w.write(message(kindCredit, flagSyn, 1, 0, ""))
			require.Equal(t, message(kindCredit, flagRst, 1, 0, ""), w.readHeader())
			w.send(2 * first)
			synctest.Wait()
			require.NoError(t, s.Err(), "it is thrown away as it comes")
			require.Zero(t, mux.Windows(s))
		})
	})
	for grown := range 5 {
		t.Run("grown", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &recordingBudget{size: 1 << 30}
				s, w := newMeasuredWriter(t, transport.SessionConfig{MaxStreams: 1, Budget: p})
				for range grown {
					w.moveHalfWindow()
				}
				require.Equal(t, first<<grown, w.open)
				overrun(t, s, w)
				p.requireReleased(t)
			})
		})
	}
}

// Bytes for a stream that was closed here are discarded without an error, however many they are:
// the peer may not have received the reset yet.
func TestBytesForClosedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newWriter(t, transport.SessionConfig{MaxStreams: 2})
		w.send(1000)
		require.NoError(t, w.read.Close())
		require.Equal(t, message(kindCredit, flagFin, 1, 0, ""), w.readHeader())
		require.Equal(t, message(kindCredit, flagRst, 1, 0, ""), w.readHeader())
		w.send(2 * first)
		w.write(dataFrame(flagSyn, 3, "x"))
		st, err := s.Accept(t.Context())
		require.NoError(t, err)
		_, err = io.ReadFull(st, make([]byte, 1))
		require.NoError(t, err)
	})
}

// A peer that has finished writing gets no more credit.
func TestNoCreditAfterEndOfStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newWriter(t, transport.SessionConfig{MaxStreams: 1})
		w.send(first)
		w.write(message(kindData, flagFin, 1, 0, ""))
		synctest.Wait()
		n, err := io.Copy(io.Discard, w.read)
		require.NoError(t, err)
		require.EqualValues(t, first, n)
		w.expectNothing()
	})
}
