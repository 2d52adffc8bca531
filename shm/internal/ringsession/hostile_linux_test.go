package ringsession_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// sendDoorbellWith sends the doorbell through sock as a peer does, with the files attached.
func sendDoorbellWith(t *testing.T, sock *net.UnixConn, doorbell uint16, files ...*os.File) {
	t.Helper()
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err := sock.WriteMsgUnix(binary.LittleEndian.AppendUint16(nil, doorbell), oob, nil)
	require.NoError(t, err)
}

// sealed creates a sealed segment of size bytes, as an honest peer does. It is closed when the test
// ends.
func sealed(t *testing.T, size int) *segment.Segment {
	t.Helper()
	s, err := segment.CreateSealed(size)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// hostile are peers that break the protocol of a session.
var hostile = map[string]func(*testing.T, *net.UnixConn){
	"a stream without a segment": func(t *testing.T, sock *net.UnixConn) { sendDoorbellWith(t, sock, ringsession.Opened) },
	"a stream beyond the slots": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
		sendDoorbellWith(t, sock, ringsession.Opened|uint16(ringsession.FirstSlots<<ringsession.SlotShift))
	},
	"a stream in a slot of this end": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
		sendDoorbellWith(t, sock, ringsession.Opened&^(1<<15))
	},
	"a stream twice": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
		sendDoorbellWith(t, sock, ringsession.Opened)
		sendDoorbellWith(t, sock, ringsession.Opened)
	},
	"a segment that is not sealed": func(t *testing.T, sock *net.UnixConn) {
		s, err := segment.Create(ringsession.FirstSegmentSize)
		require.NoError(t, err)
		defer s.Close()
		sendDoorbellWith(t, sock, ringsession.Segment, s.File())
	},
	"a segment that is too small": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, 4096).File())
	},
	"a segment that is too large": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, 2*ringsession.FirstSegmentSize).File())
	},
	"two files": func(t *testing.T, sock *net.UnixConn) {
		f := sealed(t, ringsession.FirstSegmentSize).File()
		sendDoorbellWith(t, sock, ringsession.Segment, f, f)
	},
	"a file that is not memory": func(t *testing.T, sock *net.UnixConn) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		defer w.Close()
		sendDoorbellWith(t, sock, ringsession.Segment, r)
	},
	"a later segment of the size of the first": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
	},
	"too many segments": func(t *testing.T, sock *net.UnixConn) {
		sendDoorbellWith(t, sock, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
		later := sealed(t, ringsession.LaterSegmentSize)
		for range 2*streamLimit - ringsession.FirstSlots + 1 {
			sendDoorbellWith(t, sock, ringsession.Segment, later.File())
		}
	},
	"a region that the ring does not have": useRegion(3),
	"a region that no ring has":            useRegion(1 << 31),
	"more bytes than fit": func(t *testing.T, sock *net.UnixConn) {
		s := sealed(t, ringsession.FirstSegmentSize)
		binary.LittleEndian.PutUint64(s.Bytes()[ringsession.FirstHead:], 1<<40)
		sendDoorbellWith(t, sock, ringsession.Segment, s.File())
		sendDoorbellWith(t, sock, ringsession.Opened)
	},
}

// useRegion returns a function that acts as a peer: it opens a stream in its second slot, whose
// first ring, a small one, has the given level in its header.
func useRegion(level uint32) func(t *testing.T, sock *net.UnixConn) {
	return func(t *testing.T, sock *net.UnixConn) {
		s := sealed(t, ringsession.FirstSegmentSize)
		binary.LittleEndian.PutUint64(s.Bytes()[ringsession.SecondHead:], 1)
		binary.LittleEndian.PutUint32(s.Bytes()[ringsession.SecondLevel:], level)
		sendDoorbellWith(t, sock, ringsession.Segment, s.File())
		sendDoorbellWith(t, sock, ringsession.Opened|1<<ringsession.SlotShift)
	}
}

// streamLimit is the number of streams that the sessions allow.
const streamLimit = 3

func TestHostilePeerOfSession(t *testing.T) {
	for name, attack := range hostile {
		t.Run(name, func(t *testing.T) {
			near, far := sockets(t)
			defer far.Close()
			s, err := ringsession.NewSession(near, ready(), transport.SessionConfig{MaxStreams: streamLimit}, wait.Config{Spin: wait.Spin}, addresses())
			require.NoError(t, err)
			defer s.Close()
			own, err := s.Open()
			require.NoError(t, err)
			reading := testwait.Start(func() error { _, err := own.Read(make([]byte, 1)); return err })
			attack(t, far)

			accepted := testwait.Start(func() error {
				for {
					st, err := s.Accept(t.Context())
					if err == nil {
						_, err = st.Read(make([]byte, 1))
					}
					if err != nil {
						return err
					}
				}
			})
			require.ErrorIs(t, testwait.Finish(t, accepted), ringsession.ErrCorrupt)
			require.ErrorIs(t, testwait.Finish(t, reading), ringsession.ErrCorrupt)
			require.ErrorIs(t, s.Err(), ringsession.ErrCorrupt)
		})
	}
}

// streamAndSegment returns a stream that a session has opened, and the bytes of the session's
// segment as the peer has mapped it.
func streamAndSegment(t *testing.T) (transport.Stream, []byte) {
	t.Helper()
	near, far := sockets(t)
	t.Cleanup(func() { far.Close() })
	s, err := ringsession.NewSession(near, ready(), transport.SessionConfig{MaxStreams: 1}, wait.Config{Spin: wait.Spin}, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	st, err := s.Open()
	require.NoError(t, err)
	return st, receiveSegment(t, far).Bytes()
}

// The session ends with an error if the peer's counter shows that it has read more bytes than were
// written.
func TestHostileReader(t *testing.T) {
	st, shared := streamAndSegment(t)
	binary.LittleEndian.PutUint64(shared[ringsession.FirstTail:], 1<<40)
	_, err := st.Write(make([]byte, 2<<20))
	require.ErrorIs(t, err, ringsession.ErrCorrupt)
}

// The session ends if the peer does not read its doorbells.
func TestPeerDoesNotReadDoorbells(t *testing.T) {
	t.Parallel()
	st, shared := streamAndSegment(t)
	var err error
	for err == nil { // the reader requests one doorbell after the other
		shared[ringsession.FirstReaderBlocked] = 1
		copy(shared[ringsession.FirstTail:][:8], shared[ringsession.FirstHead:])
		_, err = st.Write([]byte("x"))
	}
	require.ErrorIs(t, err, ringsession.ErrCorrupt)
}

// The session ends if the peer does not read a segment.
func TestPeerDoesNotReadSegment(t *testing.T) {
	s, _ := sessionWithFullSocket(t, time.Millisecond)
	_, err := s.Open()
	require.ErrorIs(t, err, ringsession.ErrCorrupt)
	require.ErrorIs(t, s.Err(), ringsession.ErrCorrupt)
}

// While Open blocks because the peer does not read from the socket, streams of the peer are accepted and
// Close returns.
func TestCloseWhilePeerDoesNotRead(t *testing.T) {
	s, far := sessionWithFullSocket(t, time.Hour)
	opened := testwait.Start(func() error { _, err := s.Open(); return err })
	sendDoorbellWith(t, far, ringsession.Segment, sealed(t, ringsession.FirstSegmentSize).File())
	sendDoorbellWith(t, far, ringsession.Opened)
	accepted, err := s.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, testwait.Finish(t, opened), transport.ErrClosed)
}

// sessionWithFullSocket returns a session whose socket is full, so that it cannot send anything to
// its peer, and the peer's end of the socket. limit bounds how long a send blocks.
func sessionWithFullSocket(t *testing.T, limit time.Duration) (*ringsession.Session, *net.UnixConn) {
	t.Helper()
	near, far := sockets(t)
	t.Cleanup(func() { far.Close() })
	fillSocket(t, near)
	s, err := ringsession.NewSession(near, ready(), transport.SessionConfig{MaxStreams: streamLimit}, wait.Config{Spin: wait.Spin}, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	s.SetSendTimeout(limit)
	return s, far
}

// fillSocket fills the buffer of a socket, so that nothing can be sent until its peer reads.
func fillSocket(t *testing.T, sock *net.UnixConn) {
	t.Helper()
	raw, err := sock.SyscallConn()
	require.NoError(t, err)
	var full error
	require.NoError(t, raw.Write(func(fd uintptr) bool {
		for full == nil {
			_, full = unix.Write(int(fd), []byte{0})
		}
		return true
	}))
	require.ErrorIs(t, full, unix.EAGAIN)
}

// The peer is not at fault if the system refuses to map its segment. Here it refuses because the file is open
// for writing only; a lack of memory causes the same error.
func TestSegmentThatCannotBeMapped(t *testing.T) {
	near, far := sockets(t)
	defer far.Close()
	s, err := ringsession.NewSession(near, ready(), transport.SessionConfig{MaxStreams: streamLimit}, wait.Config{Spin: wait.Spin}, addresses())
	require.NoError(t, err)
	defer s.Close()
	whole := sealed(t, ringsession.FirstSegmentSize).File()
	writable, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", whole.Fd()), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer writable.Close()
	sendDoorbellWith(t, far, ringsession.Segment, writable)
	_, err = s.Accept(t.Context())
	var refused *segment.Error
	require.ErrorAs(t, err, &refused)
	require.NotErrorIs(t, err, ringsession.ErrCorrupt)
}

// receiveSegment receives the next doorbell with a segment from sock and returns the mapped
// segment, which is closed when the test ends.
func receiveSegment(t *testing.T, sock *net.UnixConn) *segment.Segment {
	t.Helper()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, flags, _, err := sock.ReadMsgUnix(make([]byte, 2), oob)
	require.NoError(t, err)
	files, err := segment.Received(oob[:n], flags, 1)
	require.NoError(t, err)
	defer files[0].Close()
	s, err := segment.Map(files[0], 1<<30)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}
