package ringnet_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ring writes a bell, with files.
func ring(t *testing.T, sock *net.UnixConn, bell uint16, files ...*os.File) {
	t.Helper()
	var oob []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err := sock.WriteMsgUnix(binary.LittleEndian.AppendUint16(nil, bell), oob, nil)
	require.NoError(t, err)
}

// sealed makes a segment as an honest peer does.
func sealed(t *testing.T, size int) *segment.Segment {
	t.Helper()
	s, err := segment.CreateSealed(size)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// hostile are peers of a session that break the protocol.
var hostile = map[string]func(*testing.T, *net.UnixConn){
	"a stream without a segment": func(t *testing.T, sock *net.UnixConn) { ring(t, sock, ringnet.Opened) },
	"a stream beyond the places": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
		ring(t, sock, ringnet.Opened|uint16(ringnet.FirstPlaces<<ringnet.PlaceShift))
	},
	"a stream at a place of this end": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
		ring(t, sock, ringnet.Opened&^(1<<15))
	},
	"a stream twice": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
		ring(t, sock, ringnet.Opened)
		ring(t, sock, ringnet.Opened)
	},
	"a segment that is not sealed": func(t *testing.T, sock *net.UnixConn) {
		s, err := segment.Create(ringnet.FirstSegment)
		require.NoError(t, err)
		defer s.Close()
		ring(t, sock, ringnet.Segment, s.File())
	},
	"a segment that is too small": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, 4096).File())
	},
	"a segment that is too large": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, 2*ringnet.FirstSegment).File())
	},
	"two files": func(t *testing.T, sock *net.UnixConn) {
		f := sealed(t, ringnet.FirstSegment).File()
		ring(t, sock, ringnet.Segment, f, f)
	},
	"a file that is no memory": func(t *testing.T, sock *net.UnixConn) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		defer w.Close()
		ring(t, sock, ringnet.Segment, r)
	},
	"a later segment of the size of the first": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
		ring(t, sock, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
	},
	"segments without end": func(t *testing.T, sock *net.UnixConn) {
		ring(t, sock, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
		later := sealed(t, ringnet.LaterSegment)
		for range 2*places - ringnet.FirstPlaces + 1 {
			ring(t, sock, ringnet.Segment, later.File())
		}
	},
	"a region that the ring does not have": ringThatUses(3),
	"a region that no ring has":            ringThatUses(1 << 31),
	"more bytes than fit": func(t *testing.T, sock *net.UnixConn) {
		s := sealed(t, ringnet.FirstSegment)
		binary.LittleEndian.PutUint64(s.Bytes()[ringnet.FirstHead:], 1<<40)
		ring(t, sock, ringnet.Segment, s.File())
		ring(t, sock, ringnet.Opened)
	},
}

// ringThatUses is a peer whose second ring has that number of a region in its header.
func ringThatUses(n uint32) func(t *testing.T, sock *net.UnixConn) {
	return func(t *testing.T, sock *net.UnixConn) {
		s := sealed(t, ringnet.FirstSegment)
		binary.LittleEndian.PutUint64(s.Bytes()[ringnet.SecondHead:], 1)
		binary.LittleEndian.PutUint32(s.Bytes()[ringnet.SecondLevel:], n)
		ring(t, sock, ringnet.Segment, s.File())
		ring(t, sock, ringnet.Opened|1<<ringnet.PlaceShift)
	}
}

// places is how many streams the sessions allow.
const places = 3

func TestHostilePeerOfSession(t *testing.T) {
	for name, attack := range hostile {
		t.Run(name, func(t *testing.T) {
			near, far := sockets(t)
			defer far.Close()
			s, err := ringnet.NewSession(near, now(), transport.SessionConfig{Streams: places}, wait.Spin, addresses())
			require.NoError(t, err)
			defer s.Close()
			mine, err := s.Open()
			require.NoError(t, err)
			reading := patience.Start(func() error { _, err := mine.Read(make([]byte, 1)); return err })
			attack(t, far)

			accepted := patience.Start(func() error {
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
			require.ErrorIs(t, patience.Finish(t, accepted), ringnet.ErrCorrupt)
			require.ErrorIs(t, patience.Finish(t, reading), ringnet.ErrCorrupt)
			require.ErrorIs(t, s.Err(), ringnet.ErrCorrupt)
		})
	}
}

// victim is a session with a stream, and its segment.
func victim(t *testing.T) (transport.Stream, []byte) {
	t.Helper()
	near, far := sockets(t)
	t.Cleanup(func() { far.Close() })
	s, err := ringnet.NewSession(near, now(), transport.SessionConfig{Streams: 1}, wait.Spin, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	st, err := s.Open()
	require.NoError(t, err)
	return st, receive(t, far).Bytes()
}

// A reader that claims to have read more than was written.
func TestHostileReader(t *testing.T) {
	st, theirs := victim(t)
	binary.LittleEndian.PutUint64(theirs[ringnet.FirstTail:], 1<<40)
	_, err := st.Write(make([]byte, 2<<20))
	require.ErrorIs(t, err, ringnet.ErrCorrupt)
}

// A peer that does not listen to its bells is given up, not waited for.
func TestDeafPeer(t *testing.T) {
	st, theirs := victim(t)
	var err error
	for err == nil { // a reader that says again and again that it sleeps
		theirs[ringnet.FirstReader] = 1
		copy(theirs[ringnet.FirstTail:][:8], theirs[ringnet.FirstHead:])
		_, err = st.Write([]byte("x"))
	}
	require.ErrorIs(t, err, ringnet.ErrCorrupt)
}

// So is one that takes no segment.
func TestDeafPeerGetsASegment(t *testing.T) {
	s, _ := beforeTheDeaf(t, time.Millisecond)
	_, err := s.Open()
	require.ErrorIs(t, err, ringnet.ErrCorrupt)
	require.ErrorIs(t, s.Err(), ringnet.ErrCorrupt)
}

// Meanwhile the session serves what the peer opens, and ends when it is told to.
func TestCloseWhileAPeerIsDeaf(t *testing.T) {
	s, far := beforeTheDeaf(t, time.Hour)
	opened := patience.Start(func() error { _, err := s.Open(); return err })
	ring(t, far, ringnet.Segment, sealed(t, ringnet.FirstSegment).File())
	ring(t, far, ringnet.Opened)
	accepted, err := s.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, patience.Finish(t, opened), transport.ErrClosed)
}

// beforeTheDeaf is a session to whose peer nothing can be sent, for which it waits so
// long, and that peer's end.
func beforeTheDeaf(t *testing.T, limit time.Duration) (*ringnet.Session, *net.UnixConn) {
	t.Helper()
	near, far := sockets(t)
	t.Cleanup(func() { far.Close() })
	deafen(t, near)
	s, err := ringnet.NewSession(near, now(), transport.SessionConfig{Streams: places}, wait.Spin, addresses())
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	s.SetPatience(limit)
	return s, far
}

// deafen fills a socket, so that nothing can be sent until its peer reads.
func deafen(t *testing.T, sock *net.UnixConn) {
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

// What the system refuses is not the peer's fault. Here it does not map a file
// that is open for writing alone; memory that is short it tells in the same way.
func TestSegmentThatIsNotMapped(t *testing.T) {
	near, far := sockets(t)
	defer far.Close()
	s, err := ringnet.NewSession(near, now(), transport.SessionConfig{Streams: places}, wait.Spin, addresses())
	require.NoError(t, err)
	defer s.Close()
	whole := sealed(t, ringnet.FirstSegment).File()
	writable, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", whole.Fd()), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer writable.Close()
	ring(t, far, ringnet.Segment, writable)
	_, err = s.Accept(t.Context())
	var refused *segment.Error
	require.ErrorAs(t, err, &refused)
	require.NotErrorIs(t, err, ringnet.ErrCorrupt)
}

// receive maps the segment that comes next.
func receive(t *testing.T, sock *net.UnixConn) *segment.Segment {
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
