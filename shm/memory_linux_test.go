package shm

import (
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// resident returns the number of bytes of a memory file that have pages.
func resident(t *testing.T, f *os.File) int {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	return int(st.Blocks) * 512
}

// connWithFiles returns the ends of a new connection, and for each the file of its inbox's data.
// All are closed when the test ends.
func connWithFiles(t *testing.T, opts ...Option) (ends [2]*conn, inboxes [2]*os.File) {
	t.Helper()
	one, other, err := socketPair()
	require.NoError(t, err)
	tr := New(opts...)
	shakes := [2]*handshake{newHandshake(tr, one), newHandshake(tr, other)}
	for i, h := range shakes {
		require.NoError(t, h.createMemory())
		inboxes[i] = file(t, func() (int, error) { return unix.Dup(int(h.ownInbox.data.File().Fd())) })
		require.NoError(t, h.sendGreeting())
	}
	for i, h := range shakes {
		require.NoError(t, h.receiveMemory())
		require.NoError(t, h.reserveInbox())
		ends[i], err = newConn(h, "", "")
		require.NoError(t, err)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends, inboxes
}

// A connection that becomes a session after a short handshake takes only the first pages of its
// inboxes. A direction that carries more gets all of them.
func TestInboxReservesLittle(t *testing.T) {
	leakcheck.Check(t)
	ends, inboxes := connWithFiles(t)
	send := func(size int) {
		require.NoError(t, ends[0].WriteFrames(transport.Frame{make([]byte, size)}))
		wantFrame(t, ends[1], make([]byte, size))
	}
	send(100)
	send(inboxReserved - 100 - 2*headerSize)
	require.Equal(t, inboxReserved, resident(t, inboxes[1]))
	send(1)
	require.Equal(t, inboxSize, resident(t, inboxes[1]))
	require.Equal(t, inboxReserved, resident(t, inboxes[0]))
}

// If the system cannot reserve pages later (Linux before 5.14) an inbox has all of them from the
// beginning.
func TestInboxOnOldKernelIsReserved(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	require.NoError(t, subprocess.DenySyscall(unix.SYS_MADVISE, unix.EINVAL, subprocess.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE}))
	ends, inboxes := connWithFiles(t)
	for _, f := range inboxes {
		require.Equal(t, inboxSize, resident(t, f))
	}
	large := make([]byte, inboxReserved+1)
	require.NoError(t, ends[0].WriteFrames(transport.Frame{large}))
	wantFrame(t, ends[1], large)
}

// An inbox for a peer without doorbells has all pages from the beginning: the peer may be C++ and
// reserves none.
func TestInboxForTriggersIsReserved(t *testing.T) {
	leakcheck.Check(t)
	_, inboxes := connWithFiles(t, triggers)
	for _, f := range inboxes {
		require.Equal(t, inboxSize, resident(t, f))
	}
}

// An inbox for a C++ peer that dials has all pages before the greeting is sent. For one that
// listens it has them before this end's first write.
func TestInboxForCPPPeersIsReserved(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t)
	s := newRawPeer(t, l)
	s.sendGreeting(t, encodeTriggers(0, 1), s.files()...)
	requireReservedInbox(t, s)

	silentListener, err := net.ListenUnix("unix", socketAddr(""))
	require.NoError(t, err)
	defer silentListener.Close()
	dialled := testwait.Start(func() error {
		c, err := New().Dial(t.Context(), strings.TrimPrefix(silentListener.Addr().String(), "@"))
		if err == nil {
			defer c.Close()
			err = c.WriteFrames(transport.Frame{[]byte("first word")})
		}
		return err
	})
	socket, err := silentListener.AcceptUnix()
	require.NoError(t, err)
	s = rawPeerAt(t, socket)
	s.sendGreeting(t, encodeTriggers(0, 1), s.files()...)
	require.NoError(t, testwait.Finish(t, dialled))
	requireReservedInbox(t, s)
}

// requireReservedInbox receives the greeting that was sent to s, and checks that the sender's inbox
// has all pages.
func requireReservedInbox(t *testing.T, s *rawPeer) {
	t.Helper()
	g, err := receiveGreeting(s.UnixConn)
	require.NoError(t, err)
	defer g.close()
	require.Equal(t, inboxSize, resident(t, g.files[3]))
}

// Of a large inbox of a peer, this end reserves no more pages than an inbox of its own has.
func TestLargeForeignInboxIsNotReserved(t *testing.T) {
	leakcheck.Check(t)
	m, err := createRing(4*inboxSize, 1)
	require.NoError(t, err)
	defer m.close()
	require.NoError(t, m.reserveAll())
	require.Equal(t, inboxSize, resident(t, m.data.File()))
}

// withoutPages replaces the last page of memory, a mapping of the file of, by one that the system
// cannot provide. restore maps the file's page again.
func withoutPages(t *testing.T, memory []byte, of *os.File) (restore func()) {
	t.Helper()
	empty, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(empty) })
	page := os.Getpagesize()
	last := len(memory) - page
	mapPage := func(fd int, offset int64) {
		at := unsafe.Pointer(&memory[last])
		_, err := unix.MmapPtr(fd, offset, at, uintptr(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(t, err)
	}
	mapPage(empty, 0)
	return func() { mapPage(int(of.Fd()), int64(last)) }
}

// If pages of the peer's inbox cannot be reserved, WriteFrames fails and writes no part of its
// frames. Frames that need none of these pages are still written, and the same frame can be written
// later.
func TestInboxWithoutPages(t *testing.T) {
	leakcheck.Check(t)
	ends, inboxes := connWithFiles(t)
	restore := withoutPages(t, ends[0].peerInbox.data.Bytes(), inboxes[1])
	small, large := transport.Frame{[]byte("small")}, transport.Frame{[]byte("large"), make([]byte, inboxReserved)}
	for range 2 {
		require.ErrorIs(t, ends[0].WriteFrames(large), unix.EFAULT)
		require.ErrorIs(t, ends[0].WriteFrames(small, large), unix.EFAULT)
	}
	require.NoError(t, ends[0].WriteFrames(small))
	wantFrame(t, ends[1], small[0])

	restore()
	require.NoError(t, ends[0].WriteFrames(large))
	wantFrame(t, ends[1], append([]byte("large"), large[1]...))
	require.Equal(t, inboxSize, resident(t, inboxes[1]))
}

// If pages of the peer's inbox cannot be reserved, a write to a stream fails and returns 0. It
// succeeds later.
func TestStreamWithoutPages(t *testing.T) {
	leakcheck.Check(t)
	ends, inboxes := connWithFiles(t)
	s, err := ends[0].Stream()
	require.NoError(t, err)
	restore := withoutPages(t, ends[0].peerInbox.data.Bytes(), inboxes[1])
	large := make([]byte, inboxReserved+1)
	for range 2 {
		n, err := s.Write(large)
		require.ErrorIs(t, err, unix.EFAULT)
		require.Zero(t, n)
	}
	restore()
	n, err := s.Write(large)
	require.NoError(t, err)
	require.Len(t, large, n)
}

// inUse returns the numbers of open descriptors and of mappings of shared memory in this process.
func inUse(t *testing.T) (descriptors, mappings int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return len(entries), strings.Count(string(maps), "memfd:tensorpipe_shm")
}

// A connection keeps one descriptor, its socket, and the mappings of its two rings; with a peer
// without doorbells also those of the peer's reactor. The reactor of all connections takes three
// descriptors.
func TestResourcesOfConnections(t *testing.T) {
	for _, k := range []struct {
		name     string
		opts     []Option
		mappings int
	}{
		{"doorbells", nil, 4},
		{"tokens", []Option{triggers}, 6},
	} {
		t.Run(k.name, func(t *testing.T) {
			const connections = 20
			tr := New(k.opts...)
			l, err := tr.Listen(t.Context(), "")
			require.NoError(t, err)
			defer l.Close()
			fds, maps := inUse(t)
			var ends []transport.Conn
			for range connections {
				dialled, err := tr.Dial(t.Context(), l.Addr())
				require.NoError(t, err)
				accepted, err := l.Accept(t.Context())
				require.NoError(t, err)
				ends = append(ends, dialled, accepted)
			}
			moreFDs, moreMaps := inUse(t)
			require.Equal(t, 2*connections+3, moreFDs-fds)
			require.Equal(t, 2*connections*k.mappings+2, moreMaps-maps)
			for _, c := range ends {
				require.NoError(t, c.Close())
			}
			endFDs, endMaps := inUse(t)
			require.Equal(t, fds, endFDs)
			require.Equal(t, maps, endMaps)
		})
	}
}
