package shm

import (
	"encoding/binary"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// rawPeer is a peer whose messages the test chooses. Its memory is not sealed, as that of C++
// peers.
type rawPeer struct {
	*net.UnixConn
	reactor, inbox       memory
	otherReactor, outbox memory // of the other end
}

// unsealed creates the memory of a ring with size bytes of data that can be truncated. It is closed
// when the test ends.
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

// newRawPeer returns a raw peer whose socket is connected to l. It sends nothing.
func newRawPeer(t testing.TB, l transport.Listener) *rawPeer {
	t.Helper()
	socket, err := net.DialUnix("unix", nil, socketAddr(l.Addr()))
	require.NoError(t, err)
	return rawPeerAt(t, socket)
}

// rawPeerAt returns a raw peer that uses socket, with an inbox and a reactor's ring of its own.
// They are closed when the test ends.
func rawPeerAt(t testing.TB, socket *net.UnixConn) *rawPeer {
	t.Helper()
	t.Cleanup(func() { socket.Close() })
	return &rawPeer{UnixConn: socket, reactor: unsealed(t, reactorSize), inbox: unsealed(t, inboxSize)}
}

// files returns the four files of an honest greeting of s.
func (s *rawPeer) files() []*os.File {
	return []*os.File{s.reactor.header.File(), s.reactor.data.File(), s.inbox.header.File(), s.inbox.data.File()}
}

// sendGreeting sends one message with the bytes text and the descriptors of the files through the
// socket of s.
func (s *rawPeer) sendGreeting(t testing.TB, text []byte, files ...*os.File) {
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

// encodeTriggers returns the eight bytes by which a greeting encodes two triggers.
func encodeTriggers(in, out uint32) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, in), out)
}

// handshake performs an honest handshake of s with l, in which the triggers of s are in and out. It
// maps the memory of the other end for s, and returns the connection that l has accepted.
func (s *rawPeer) handshake(t testing.TB, l transport.Listener, in, out uint32) transport.Conn {
	t.Helper()
	s.sendGreeting(t, encodeTriggers(in, out), s.files()...)
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	g, err := receiveGreeting(s.UnixConn)
	require.NoError(t, err)
	defer g.close()
	s.otherReactor, err = mapRing(g.files[0], g.files[1])
	require.NoError(t, err)
	t.Cleanup(s.otherReactor.close)
	s.outbox, err = mapRing(g.files[2], g.files[3])
	require.NoError(t, err)
	t.Cleanup(s.outbox.close)
	return c
}

// put writes the bytes p to the inbox of the other end, and sends no trigger.
func (s *rawPeer) put(t testing.TB, p string) {
	t.Helper()
	out := s.outbox.ring.Producer()
	require.NoError(t, out.Begin())
	require.NoError(t, out.WriteAll([]byte(p)))
	require.NoError(t, out.Commit())
}

// setField writes value to the field at the offset at in the header of the ring m.
func setField(m memory, at int, value uint64) {
	binary.NativeEndian.PutUint64(m.header.Bytes()[at:], value)
}

// Where the markers of a ring are.
const (
	tailAt = 24
	headAt = 32
)
