package uv_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// unreadBytes is more than the buffers of a connection take.
const unreadBytes = 64 << 20

// rawSession returns the client's end of a session over TCP, and the connection that is its other end.
func rawSession(t *testing.T) (transport.Session, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := uv.New().Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	session, err := c.(transport.Multiplexer).Multiplex(transport.SessionConfig{Client: true, MaxStreams: 4})
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { session.Close(); peer.Close() })
	return session, peer
}

// openRaw opens a stream and makes the peer accept it, with a window of some GiB.
func openRaw(t *testing.T, session transport.Session, peer net.Conn) transport.Stream {
	t.Helper()
	s, err := session.Open()
	require.NoError(t, err)
	id, _ := readRaw(t, peer)
	accept := []byte{0, 1, 0, 2}
	accept = binary.BigEndian.AppendUint32(accept, id)
	_, err = peer.Write(binary.BigEndian.AppendUint32(accept, 3<<30))
	require.NoError(t, err)
	return s
}

// readRaw reads a message of the session from the peer's end, and returns its stream and its body.
func readRaw(t *testing.T, peer net.Conn) (id uint32, body []byte) {
	t.Helper()
	var h [12]byte
	_, err := io.ReadFull(peer, h[:])
	require.NoError(t, err)
	if h[1] == 0 {
		body = make([]byte, binary.BigEndian.Uint32(h[8:]))
		_, err = io.ReadFull(peer, body)
		require.NoError(t, err)
	}
	return binary.BigEndian.Uint32(h[4:]), body
}

// readRawBytes reads n bytes of a stream, and other streams' in between, which it returns as well.
func readRawBytes(t *testing.T, peer net.Conn, stream uint32, n int) (got, others []byte) {
	t.Helper()
	for len(got) < n {
		id, body := readRaw(t, peer)
		if id == stream {
			got = append(got, body...)
		} else {
			others = append(others, body...)
		}
	}
	return got, others
}

func randomBytes(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(p)
	return p
}

// startGather starts a WriteBuffers of all pieces, which blocks because the peer does not read.
func startGather(t *testing.T, s transport.Stream, pieces *net.Buffers) <-chan error {
	t.Helper()
	return testwait.StartBlocked(t, "WriteBuffers", func() error {
		_, err := s.(transport.Gatherer).WriteBuffers(pieces)
		return err
	})
}

// A write deadline ends WriteBuffers although the peer does not read, and the memory of the pieces is not used
// any more. The next call goes on with what remains. Other streams are not affected.
func TestWriteBuffersInterrupted(t *testing.T) {
	session, peer := rawSession(t)
	s, other := openRaw(t, session, peer), openRaw(t, session, peer)
	want := randomBytes(unreadBytes)
	lent := bytes.Clone(want)
	pieces := net.Buffers{lent[:10], nil, lent[10 : unreadBytes/2], lent[unreadBytes/2:]}
	done := startGather(t, s, &pieces)
	_, err := other.Write([]byte("other"))
	require.NoError(t, err)
	require.NoError(t, s.SetWriteDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, testwait.Finish(t, done), os.ErrDeadlineExceeded)
	left := bytes.Join(pieces, nil)
	require.Less(t, len(left), unreadBytes)
	clear(lent)
	n, err := s.(transport.Gatherer).WriteBuffers(&net.Buffers{left})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, n)

	require.NoError(t, s.SetWriteDeadline(time.Time{}))
	rest := testwait.Start(func() error {
		_, err := s.(transport.Gatherer).WriteBuffers(&net.Buffers{left})
		return err
	})
	got, others := readRawBytes(t, peer, 1, unreadBytes)
	require.True(t, bytes.Equal(want, got))
	require.Equal(t, "other", string(others))
	require.NoError(t, testwait.Finish(t, rest))
}

// A deadline that passes when WriteBuffers has ended, or has not begun, affects no other write.
func TestWriteBuffersDeadlines(t *testing.T) {
	session, peer := rawSession(t)
	s, other := openRaw(t, session, peer), openRaw(t, session, peer)
	want := randomBytes(8 << 20)
	received := testwait.Start(func() []byte {
		got, others := readRawBytes(t, peer, 1, len(want))
		require.Empty(t, bytes.Trim(others, "o"))
		return got
	})
	stop := make(chan struct{})
	interrupter := testwait.Start(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			if err := s.SetWriteDeadline(time.Unix(1, 0)); err != nil {
				return err
			}
			if err := s.SetWriteDeadline(time.Time{}); err != nil {
				return err
			}
		}
	})
	for left := bytes.Clone(want); len(left) > 0; {
		pieces := net.Buffers{left}
		n, err := s.(transport.Gatherer).WriteBuffers(&pieces)
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		clear(left[:n])
		left = left[n:]
		_, err = other.Write([]byte("o"))
		require.NoError(t, err, "it has no deadline")
	}
	close(stop)
	require.NoError(t, testwait.Finish(t, interrupter))
	require.True(t, bytes.Equal(want, testwait.Finish(t, received)))
}

// Close of the stream or of the session ends WriteBuffers, and ends itself, although the peer does not read.
func TestWriteBuffersClosed(t *testing.T) {
	for name, closeOne := range map[string]func(transport.Session, transport.Stream) error{
		"stream":  func(_ transport.Session, s transport.Stream) error { return s.Close() },
		"writing": func(_ transport.Session, s transport.Stream) error { return s.CloseWrite() },
		"session": func(s transport.Session, _ transport.Stream) error { return s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			session, peer := rawSession(t)
			s := openRaw(t, session, peer)
			done := startGather(t, s, &net.Buffers{make([]byte, unreadBytes)})
			require.NoError(t, closeOne(session, s))
			require.ErrorIs(t, testwait.Finish(t, done), transport.ErrClosed)
		})
	}
}
