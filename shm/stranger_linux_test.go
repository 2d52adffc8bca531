package shm

import (
	"encoding/binary"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// stranger is a peer that does what it wants, with memory that is not sealed, as
// that of C++ peers.
type stranger struct {
	*net.UnixConn
	reactor, inbox memory
	post, outbox   memory // of the other end
}

// unsealed makes the memory of a ring.
func unsealed(t testing.TB, size int) memory {
	t.Helper()
	m, err := createUnsealed(size)
	t.Cleanup(m.close)
	require.NoError(t, err)
	return m
}

func createUnsealed(size int) (m memory, err error) {
	if m.header, err = segment.Create(ring.HeaderSize); err != nil {
		return m, err
	}
	if m.data, err = segment.Create(size); err != nil {
		return m, err
	}
	if err = ring.Init(m.header.Bytes(), size); err != nil {
		return m, err
	}
	m.ring, err = ring.Open(m.header.Bytes(), m.data.Bytes())
	return m, err
}

// newStranger dials l and says nothing yet.
func newStranger(t testing.TB, l transport.Listener) *stranger {
	t.Helper()
	socket, err := net.DialUnix("unix", nil, socketAddr(l.Addr()))
	require.NoError(t, err)
	return strangerAt(t, socket)
}

// strangerAt is a stranger at that end of a socket.
func strangerAt(t testing.TB, socket *net.UnixConn) *stranger {
	t.Helper()
	t.Cleanup(func() { socket.Close() })
	return &stranger{UnixConn: socket, reactor: unsealed(t, reactorSize), inbox: unsealed(t, inboxSize)}
}

// files are what a stranger passes.
func (s *stranger) files() []*os.File {
	return []*os.File{s.reactor.header.File(), s.reactor.data.File(), s.inbox.header.File(), s.inbox.data.File()}
}

// greet sends bytes and descriptors.
func (s *stranger) greet(t testing.TB, text []byte, files ...*os.File) {
	t.Helper()
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err := s.WriteMsgUnix(text, rights, nil)
	require.NoError(t, err)
}

// words are two tokens.
func words(in, out uint32) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, in), out)
}

// shake does a handshake by the rules, and returns the connection at the other
// end.
func (s *stranger) shake(t testing.TB, l transport.Listener, in, out uint32) transport.Conn {
	t.Helper()
	s.greet(t, words(in, out), s.files()...)
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	g, err := receive(s.UnixConn)
	require.NoError(t, err)
	defer g.close()
	s.post, err = open(g.files[0], g.files[1])
	require.NoError(t, err)
	t.Cleanup(s.post.close)
	s.outbox, err = open(g.files[2], g.files[3])
	require.NoError(t, err)
	t.Cleanup(s.outbox.close)
	return c
}

// put puts bytes into the ring without a word.
func (s *stranger) put(t testing.TB, p string) {
	t.Helper()
	out := s.outbox.ring.Producer()
	require.NoError(t, out.Begin())
	require.NoError(t, out.WriteAll([]byte(p)))
	require.NoError(t, out.Commit())
}

// mark changes a field of a header.
func mark(m memory, at int, value uint64) {
	binary.NativeEndian.PutUint64(m.header.Bytes()[at:], value)
}

// Where the markers of a ring are.
const (
	tailAt = 24
	headAt = 32
)
