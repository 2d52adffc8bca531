package hostile_test

import (
	"encoding/binary"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// mitm is a man in the middle of a connection over shared memory. It forwards the bytes of the Unix
// sockets, keeps the shared files, and injects bytes.
type mitm struct {
	t        *testing.T
	name     string // to dial
	pumps    sync.WaitGroup
	listener *net.UnixListener
	sessions [2]chan struct{} // closed when the end has begun to send bells

	mu    sync.Mutex
	ends  [2]*net.UnixConn // the dialling and the listening end
	files [2][]*os.File    // that client from them
}

const (
	dialler = iota
	listens
)

// newMITM returns a man in the middle of shared memory connections. It listens at a Unix socket for
// one client, dials the listener whose name is the parameter to when that client connects, and
// forwards between the two. It ends with the test.
func newMITM(t *testing.T, to string) *mitm {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix"})
	require.NoError(t, err)
	b := &mitm{t: t, listener: l, name: l.Addr().String()[1:]}
	b.sessions = [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	b.pumps.Go(func() { b.accept(to) })
	t.Cleanup(func() {
		l.Close()
		b.closeConns()
		b.pumps.Wait()
		for _, f := range append(b.files[dialler], b.files[listens]...) {
			f.Close()
		}
	})
	return b
}

func (b *mitm) accept(to string) {
	client, err := b.listener.AcceptUnix()
	if err != nil {
		return // the listener is closed
	}
	upstream, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: "@" + to})
	if err != nil {
		b.t.Error(err)
		client.Close()
		return
	}
	b.mu.Lock()
	b.ends = [2]*net.UnixConn{client, upstream}
	b.mu.Unlock()
	b.pumps.Go(func() { b.forward(dialler) })
	b.pumps.Go(func() { b.forward(listens) })
}

func (b *mitm) closeConns() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.ends {
		if c != nil {
			c.Close()
		}
	}
}

// forward forwards the bytes that one of the two ends sends to the other end, until either has
// closed, and then closes both connections. The parameter from is the index of the sending end.
// First comes the greeting, then doorbells of one byte, and, after the byte that announces the
// session, the longer bells of the session. Each is forwarded as one message, because files are
// attached to the first byte of a message.
func (b *mitm) forward(from int) {
	defer b.closeConns()
	bytes, oob := make([]byte, greetingSize), make([]byte, syscall.CmsgSpace(4*4))
	for {
		n, came, _, _, err := b.ends[from].ReadMsgUnix(bytes, oob)
		if err != nil || n == 0 {
			return
		}
		if b.forwardMessage(from, bytes[:n], oob[:came]) != nil {
			return
		}
		switch {
		case n == greetingSize:
			bytes = bytes[:1]
		case n == 1 && bytes[0] == changeOver:
			bytes = bytes[:bellSize]
			close(b.sessions[from])
		}
	}
}

func (b *mitm) forwardMessage(from int, bytes, oob []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return err
		}
		for _, fd := range fds {
			b.files[from] = append(b.files[from], os.NewFile(uintptr(fd), "shared"))
		}
	}
	_, _, err = b.ends[1-from].WriteMsgUnix(bytes, oob, nil)
	return err
}

// inject sends bytes to one of the two ends as if the other end had sent them. The parameter to is
// the index of the receiving end. inject ignores errors, since the end may have closed.
func (b *mitm) inject(to int, bytes ...byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.ends[to].Write(bytes)
}

// corrupt overwrites 8 bytes of a memory segment with value. The parameter from is the index of the
// end that has sent the segment, k the number of the segment among those of that end, from 0, and
// the parameter at the offset of the bytes.
func (b *mitm) corrupt(from, k, at int, value uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Greater(b.t, len(b.files[from]), k)
	s, err := segment.Map(b.files[from][k], 1<<30)
	require.NoError(b.t, err)
	defer s.Close()
	binary.NativeEndian.PutUint64(s.Bytes()[at:], value)
}

// Bytes on the socket and offsets in shared memory, see docs/wire.md. The listening end
// sends the session's first segment after the four files of its greeting.
const (
	firstSegment  = 4
	firstHead     = 128
	inboxHeader   = 2
	inboxHead     = 32
	greetingSize  = 8
	oneDoorbell   = 1
	changeOver    = 2
	bellSize      = 2
	bellReadable  = 1 << 15
	bellNoStream  = 1<<15 | 1000<<2 | 2
	impossiblyFar = 1 << 40
)

func (b *mitm) sendBell(to int, bell uint16) {
	b.inject(to, binary.LittleEndian.AppendUint16(nil, bell)...)
}

// TestSharedMemoryBroken checks that a peer that violates the protocol of shared memory breaks a
// native pipe with ErrProtocol, at either end.
func TestSharedMemoryBroken(t *testing.T) {
	for name, c := range map[string]struct {
		victim int
		attack func(b *mitm)
	}{
		"bell for one that dialled": {dialler, func(b *mitm) { b.sendBell(dialler, bellNoStream) }},
		"bell for one that listens": {listens, func(b *mitm) { b.sendBell(listens, bellNoStream) }},
		"counter of a ring": {listens, func(b *mitm) {
			b.corrupt(listens, firstSegment, firstHead, impossiblyFar)
			b.sendBell(listens, bellReadable)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, ends := openThroughMITM(t)
			c.attack(b)
			requireProtocolBroken(t, ends[c.victim])
			ends[1-c.victim].Abort(nil)
		})
	}
}

// openThroughMITM opens a native pipe over shared memory through a man in the middle, sends a
// message in each direction, and returns the man in the middle and both ends of the pipe. It skips
// the test if shared memory does not work here.
func openThroughMITM(t *testing.T) (*mitm, [2]*pipe.Pipe) {
	t.Helper()
	if err := shm.New().Viable(); err != nil {
		t.Skip("shared memory does not work here: ", err)
	}
	newSHMContext := func(name string) *pipe.Context {
		return newContext(t, pipe.Options{
			Name:       name,
			Transports: []pipe.TransportEntry{{Name: shm.Name, Transport: shm.New()}},
			Channels:   []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
		})
	}
	l, err := newSHMContext("listener").Listen(t.Context(), "shm://")
	require.NoError(t, err)
	b := newMITM(t, l.URLs()[0][len("shm://"):])
	dialled, err := newSHMContext("dialler").Dial(t.Context(), "shm://"+b.name)
	require.NoError(t, err)
	accepted, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, pipe.DialectNative, accepted.Plan().Dialect)
	ends := [2]*pipe.Pipe{dialler: dialled, listens: accepted}
	for k, p := range ends {
		require.NoError(t, p.Write(t.Context(), &pipe.Message{Metadata: []byte("hello")}))
		in, err := ends[1-k].Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Read(t.Context(), pipe.Allocation{}))
	}
	for _, said := range b.sessions {
		<-said // the messages above may have arrived earlier through the rings
	}
	return b, ends
}

func requireProtocolBroken(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	for _, err := range []error{next(t, p), p.Err(), p.Write(t.Context(), &pipe.Message{})} {
		require.ErrorIs(t, err, pipe.ErrProtocol)
		require.NotErrorIs(t, err, pipe.ErrPeerLost)
	}
	require.NoError(t, p.Close(), "closing what is broken")
}

// TestSharedMemoryBrokenCompatible checks that a peer that violates the protocol of shared memory
// breaks a compatible pipe with ErrProtocol.
func TestSharedMemoryBrokenCompatible(t *testing.T) {
	s := newSHMHandshake(t)
	ids := s.answer.TransportRegistrationIDs
	s.dialRaw(t, s.answer.ChannelRegistrationIDs[basic.Name][0])
	s.dialRaw(t, ids[wire.ReplyConnection])
	b := newMITM(t, s.answer.Address)
	s.answer.Address = b.name
	desc := s.dialRaw(t, ids[wire.DescriptorConnection])
	p, err := s.listener.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, desc.WriteFrames(transport.Frame{payloadDescriptor(2)}, transport.Frame{[]byte("hi")}))
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
	b.corrupt(listens, inboxHeader, inboxHead, math.MaxUint64)
	b.inject(listens, oneDoorbell)
	requireProtocolBroken(t, p)
	s.v.requireIdle(t)
}
