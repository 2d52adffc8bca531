package mux_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/mux"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

const (
	kindData = iota
	kindCredit
	kindPing
	kindGoAway

	flagSyn = 1
	flagAck = 2
	flagFin = 4
	flagRst = 8
)

// message returns the bytes of a message with these fields, valid or not. length is independent of
// the length of body.
func message(kind byte, flags uint16, stream, length uint32, body string) []byte {
	p := []byte{0, kind}
	p = binary.BigEndian.AppendUint16(p, flags)
	p = binary.BigEndian.AppendUint32(p, stream)
	p = binary.BigEndian.AppendUint32(p, length)
	return append(p, body...)
}

func dataFrame(flags uint16, stream uint32, body string) []byte {
	return message(kindData, flags, stream, uint32(len(body)), body)
}

// rawSession returns the server's end of a session, and the connection of its peer as a stream of
// bytes. Both are closed when the test ends.
func rawSession(t testing.TB, cfg transport.SessionConfig, opts ...mem.Option) (transport.Session, transport.Stream) {
	t.Helper()
	tr := mem.New(nil, opts...)
	l, err := tr.Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	d, err := tr.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	a, err := l.Accept(t.Context())
	require.NoError(t, err)
	peer, err := d.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	s, err := a.(transport.Multiplexer).Multiplex(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close(); peer.Close() })
	return s, peer
}

// pass blocks for the duration d, in the virtual time of a testing/synctest bubble.
func pass(d time.Duration) { <-time.NewTimer(d).C }

func waitEnd(t testing.TB, s transport.Session) error {
	t.Helper()
	select {
	case <-s.Done():
	case <-t.Context().Done():
		t.Fatal("the session does not end")
	}
	return s.Err()
}

// A faulty peer or connection ends the session with the right error, and bytes that arrived before
// can still be read.
func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		last []byte // written by the peer, before it closes the connection
		want error
		says string
	}{
		{"between messages", nil, io.EOF, ""},
		{"within a header", make([]byte, 11), io.ErrUnexpectedEOF, ""},
		{"behind a header", message(kindData, 0, 1, 5, ""), io.ErrUnexpectedEOF, ""},
		{"within a body", message(kindData, 0, 1, 5, "1234"), io.ErrUnexpectedEOF, ""},
		{"within a body for nobody", message(kindData, 0, 77, 5, "1234"), io.ErrUnexpectedEOF, ""},
		{"GoAway", message(kindGoAway, 0, 0, 0, ""), io.EOF, ""},
		{"GoAway with a reason", message(kindGoAway, 0, 0, 1, ""), transport.ErrFrame, "code 1"},
		{"answer nobody asked for", message(kindPing, flagAck, 0, 9, ""), io.EOF, ""},
		{"data for nobody", dataFrame(0, 77, "hello"), io.EOF, ""},
		{"another version", []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), transport.ErrFrame, "version 1"},
		{"unknown kind", message(4, 0, 0, 0, ""), transport.ErrFrame, "kind 4"},
		{"huge message", message(kindData, 0, 1, 1<<31, ""), transport.ErrFrame, "2147483648 bytes in one message"},
		{"stream of this end", message(kindCredit, flagSyn, 2, 0, ""), transport.ErrFrame, "number 2"},
		{"stream without number", message(kindData, flagSyn, 0, 0, ""), transport.ErrFrame, "number 0"},
		{"stream opened twice", message(kindCredit, flagSyn, 1, 0, ""), transport.ErrFrame, "number 1 after 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 3})
			early := dataFrame(flagSyn, 1, "came before")
			_, err := peer.Write(append(early, tc.last...))
			require.NoError(t, err)
			require.NoError(t, peer.CloseWrite())

			require.ErrorIs(t, waitEnd(t, s), tc.want)
			require.ErrorContains(t, s.Err(), tc.says)
			st, err := s.Accept(t.Context())
			require.NoError(t, err)
			got := make([]byte, len("came before"))
			_, err = io.ReadFull(st, got)
			require.NoError(t, err)
			require.Equal(t, "came before", string(got))

			_, err = io.Copy(io.Discard, st)
			require.ErrorIs(t, err, tc.want)
			_, err = st.Write(got)
			require.ErrorIs(t, err, tc.want)
			_, err = s.Open()
			require.ErrorIs(t, err, tc.want)
			_, err = s.Accept(t.Context())
			require.ErrorIs(t, err, tc.want)
		})
	}
}

func TestReset(t *testing.T) {
	s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1})
	_, err := peer.Write(append(dataFrame(flagSyn, 1, "x"), message(kindCredit, flagRst, 1, 0, "")...))
	require.NoError(t, err)
	st, err := s.Accept(t.Context())
	require.NoError(t, err)
	reset := &mux.ResetError{}
	for err = nil; err == nil; {
		_, err = st.Read(make([]byte, 1))
	}
	require.ErrorAs(t, err, &reset)
	require.EqualValues(t, 1, reset.Stream)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = st.Write([]byte("x"))
	require.ErrorAs(t, err, &reset)
	require.NoError(t, s.Err())
}

// A peer that has sent GoAway can still use the open streams.
func TestGoAway(t *testing.T) {
	s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1})
	_, err := peer.Write(append(message(kindGoAway, 0, 0, 0, ""), dataFrame(flagSyn, 1, "x")...))
	require.NoError(t, err)
	st, err := s.Accept(t.Context())
	require.NoError(t, err)
	_, err = s.Open()
	require.ErrorIs(t, err, io.EOF)
	_, err = io.ReadFull(st, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, s.Err())
}

func TestConnectionReset(t *testing.T) {
	d, a := tcp(t)
	s, err := mux.New(a, transport.SessionConfig{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, d.SetLinger(0))
	require.NoError(t, d.Close())
	require.ErrorIs(t, waitEnd(t, s), syscall.ECONNRESET)
}

func TestConfig(t *testing.T) {
	_, a := tcp(t)
	for _, cfg := range []transport.SessionConfig{{MaxStreams: -1}, {Window: -1}, {MaxStreams: 1 << 40}, {Window: 1 << 40}} {
		_, err := mux.New(a, cfg)
		require.ErrorIs(t, err, mux.ErrConfig)
	}
}

// A stalled peer does not end the session, even after a day, whatever was written to it.
func TestStalledPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1}, mem.WithBuffer(100))
		st, err := s.Open()
		require.NoError(t, err)
		written := make(chan error, 1)
		go func() {
			_, err := st.Write(make([]byte, 200<<10))
			written <- err
		}()
		pass(24 * time.Hour)
		synctest.Wait()
		require.NoError(t, s.Err())

		n, err := io.CopyN(io.Discard, peer, 200<<10)
		require.NoError(t, err)
		require.EqualValues(t, 200<<10, n)
		require.NoError(t, <-written)
	})
}

// On a connection that accepts writes, Close sends GoAway as the last message, and waits for
// nothing else.
func TestCloseSendsGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := rawSession(t, transport.SessionConfig{})
		began := time.Now()
		require.NoError(t, s.Close())
		require.Zero(t, time.Since(began))
		said, err := io.ReadAll(peer)
		require.NoError(t, err)
		require.Equal(t, message(kindGoAway, 0, 0, 0, ""), said)
	})
}

// Close of a session whose connection accepts no bytes returns after a short time.
func TestCloseWithStalledConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1}, mem.WithBuffer(100))
		_, err := peer.Write(dataFrame(flagSyn, 1, "x"))
		require.NoError(t, err)
		read, err := s.Accept(t.Context())
		require.NoError(t, err)
		st, err := s.Open()
		require.NoError(t, err)
		written := make(chan error, 2)
		for range cap(written) {
			go func() {
				for {
					if _, err := st.Write(make([]byte, 1000)); err != nil {
						written <- err
						return
					}
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		require.NoError(t, st.CloseWrite())
		for range cap(written) {
			require.ErrorIs(t, <-written, transport.ErrClosed)
		}
		require.NoError(t, st.Close())
		require.NoError(t, read.SetReadDeadline(began))
		_, err = read.Read(make([]byte, 1))
		require.NoError(t, err, "what is there can be read")
		_, err = read.Read(make([]byte, 1))
		require.True(t, err.(net.Error).Timeout())
		require.NoError(t, s.Close())
		require.Less(t, time.Since(began), 2*time.Second)
		_, err = read.Read(make([]byte, 1))
		require.ErrorIs(t, err, transport.ErrClosed)
	})
}

// readOnlyConn is a connection that can be read and not written.
type readOnlyConn struct {
	transport.Stream
	err error
}

func (h readOnlyConn) Write([]byte) (int, error) { return 0, h.err }

// After a failed write the session still reads the connection for a while, and then ends.
func TestWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, peer := rawSession(t, transport.SessionConfig{})
		broken := fmt.Errorf("broken")
		s, err := mux.New(readOnlyConn{peer, broken}, transport.SessionConfig{Client: true})
		require.NoError(t, err)
		defer s.Close()
		_, err = s.Open()
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, s.Err())
		pass(time.Minute)
		require.Equal(t, broken, s.Err())
	})
}

// Credit for bytes that are read after the read deadline has passed is sent all the same.
func TestCreditIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 256 << 10
		s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 1, Window: window}, mem.WithBuffer(2*window))
		_, err := peer.Write(message(kindCredit, flagSyn, 1, 0, ""))
		require.NoError(t, err)
		st, err := s.Accept(t.Context())
		require.NoError(t, err)
		_, err = peer.Write(dataFrame(0, 1, string(make([]byte, window))))
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, st.SetReadDeadline(time.Unix(1, 0)))
		n, err := io.ReadFull(st, make([]byte, window))
		require.NoError(t, err, "it is there")
		require.Equal(t, window, n)

		got := make([]byte, 24)
		_, err = io.ReadFull(peer, got)
		require.NoError(t, err)
		require.Equal(t, message(kindCredit, flagAck, 1, 0, ""), got[:12])
		require.Equal(t, message(kindCredit, 0, 1, window, ""), got[12:])
	})
}

// FuzzPeer sends arbitrary input to a session. The input does no more than end the session, and
// reads return only bytes that were sent.
func FuzzPeer(f *testing.F) {
	f.Add(dataFrame(flagSyn, 1, "hello"), false)
	f.Add(append(message(kindCredit, flagSyn, 2, 1<<20, ""), dataFrame(flagFin, 2, "x")...), true)
	f.Add(append(dataFrame(flagSyn|flagRst, 1, "a"), message(kindPing, flagSyn, 0, 7, "")...), false)
	f.Add(append(message(kindCredit, flagSyn|flagFin, 1, 0, ""), dataFrame(0, 1, "after the end")...), false)
	f.Fuzz(func(t *testing.T, p []byte, client bool) {
		s, peer := rawSession(t, transport.SessionConfig{MaxStreams: 3, Client: client}, mem.WithBuffer(len(p)+4096))
		mine, err := s.Open()
		require.NoError(t, err)
		_, err = peer.Write(p)
		require.NoError(t, err)
		require.NoError(t, peer.CloseWrite())
		require.Error(t, waitEnd(t, s))
		n, _ := io.Copy(io.Discard, mine)
		for {
			st, err := s.Accept(context.Background())
			if err != nil {
				break
			}
			changed, _ := io.Copy(io.Discard, st)
			n += changed
		}
		require.LessOrEqual(t, n, int64(len(p)))
		require.NoError(t, s.Close())
	})
}
