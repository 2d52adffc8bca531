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

// between stands between two ends of a connection over shared memory, who take it for
// each other. It passes on what they say, keeps the memory that they share, and puts in
// what it likes.
type between struct {
	t        *testing.T
	name     string // to dial
	pumps    sync.WaitGroup
	listener *net.UnixListener
	sessions [2]chan struct{} // closed when the end has said that bells are next

	mu    sync.Mutex
	ends  [2]*net.UnixConn // the one that dialled, and the one that listens
	files [2][]*os.File    // that came from them
}

const (
	dialler = iota
	listens
)

// newBetween waits for one who dials, and dials to.
func newBetween(t *testing.T, to string) *between {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix"})
	require.NoError(t, err)
	b := &between{t: t, listener: l, name: l.Addr().String()[1:]}
	b.sessions = [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	b.pumps.Go(func() { b.meet(to) })
	t.Cleanup(func() {
		l.Close()
		b.hangUp()
		b.pumps.Wait()
		for _, f := range append(b.files[dialler], b.files[listens]...) {
			f.Close()
		}
	})
	return b
}

func (b *between) meet(to string) {
	came, err := b.listener.AcceptUnix()
	if err != nil {
		return // nobody comes any more
	}
	there, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: "@" + to})
	if err != nil {
		b.t.Error(err)
		came.Close()
		return
	}
	b.mu.Lock()
	b.ends = [2]*net.UnixConn{came, there}
	b.mu.Unlock()
	b.pumps.Go(func() { b.pump(dialler) })
	b.pumps.Go(func() { b.pump(listens) })
}

func (b *between) hangUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.ends {
		if c != nil {
			c.Close()
		}
	}
}

// pump passes on what one end says, until either has gone: the greeting, doorbells of a
// byte, and the bells of a session behind the byte that announces it. It passes them on
// one by one, because files come with the first byte of one.
func (b *between) pump(from int) {
	defer b.hangUp()
	bytes, oob := make([]byte, greetingSize), make([]byte, syscall.CmsgSpace(4*4))
	for {
		n, came, _, _, err := b.ends[from].ReadMsgUnix(bytes, oob)
		if err != nil || n == 0 {
			return
		}
		if b.pass(from, bytes[:n], oob[:came]) != nil {
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

func (b *between) pass(from int, bytes, oob []byte) error {
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

// say tells one end something in the name of the other. One that has noticed already
// hears no more.
func (b *between) say(to int, bytes ...byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.ends[to].Write(bytes)
}

// spoil changes a counter in the k-th memory that came from one end.
func (b *between) spoil(from, k, at int, value uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Greater(b.t, len(b.files[from]), k)
	s, err := segment.Map(b.files[from][k], 1<<30)
	require.NoError(b.t, err)
	defer s.Close()
	binary.NativeEndian.PutUint64(s.Bytes()[at:], value)
}

// What ends say on their socket and where things lie in the memory that they share, see
// docs/wire.md: the listening end passes the session's first segment after the four files of
// its greeting.
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

func (b *between) ring(to int, bell uint16) {
	b.say(to, binary.LittleEndian.AppendUint16(nil, bell)...)
}

// What a peer does to shared memory that it must not breaks the protocol, and says so at
// the pipe, at either end.
func TestSharedMemoryBroken(t *testing.T) {
	for name, c := range map[string]struct {
		victim int
		attack func(b *between)
	}{
		"bell for one that dialled": {dialler, func(b *between) { b.ring(dialler, bellNoStream) }},
		"bell for one that listens": {listens, func(b *between) { b.ring(listens, bellNoStream) }},
		"counter of a ring": {listens, func(b *between) {
			b.spoil(listens, firstSegment, firstHead, impossiblyFar)
			b.ring(listens, bellReadable)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, ends := nativelyShared(t)
			c.attack(b)
			requireProtocolBroken(t, ends[c.victim])
			ends[1-c.victim].Abort(nil)
		})
	}
}

// nativelyShared opens a pipe over shared memory with somebody in between.
func nativelyShared(t *testing.T) (*between, [2]*pipe.Pipe) {
	t.Helper()
	if err := shm.New().Viable(); err != nil {
		t.Skip("shared memory does not work here: ", err)
	}
	sharing := func(name string) *pipe.Context {
		return newContext(t, pipe.Options{
			Name:       name,
			Transports: []pipe.TransportEntry{{Name: shm.Name, Transport: shm.New()}},
			Channels:   []pipe.ChannelEntry{{Name: basic.Name, Factory: basic.New()}},
		})
	}
	l, err := sharing("listener").Listen(t.Context(), "shm://")
	require.NoError(t, err)
	b := newBetween(t, l.URLs()[0][len("shm://"):])
	there, err := sharing("dialler").Dial(t.Context(), "shm://"+b.name)
	require.NoError(t, err)
	here, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, pipe.DialectNative, here.Plan().Dialect)
	ends := [2]*pipe.Pipe{dialler: there, listens: here}
	for k, p := range ends {
		require.NoError(t, p.Write(t.Context(), &pipe.Message{Metadata: []byte("hello")}))
		in, err := ends[1-k].Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Read(t.Context(), pipe.Allocation{}))
	}
	for _, said := range b.sessions {
		<-said // what they said through the memory may have been faster
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

// Likewise in the compatible dialect.
func TestSharedMemoryBrokenCompatibly(t *testing.T) {
	s := newSharing(t)
	ids := s.answer.TransportRegistrationIDs
	s.visit(t, s.answer.ChannelRegistrationIDs[basic.Name][0])
	s.visit(t, ids[wire.ReplyConnection])
	b := newBetween(t, s.answer.Address)
	s.answer.Address = b.name
	desc := s.visit(t, ids[wire.DescriptorConnection])
	p, err := s.listener.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, desc.WriteFrames(transport.Frame{payloadDescriptor(2)}, transport.Frame{[]byte("hi")}))
	in, err := p.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
	b.spoil(listens, inboxHeader, inboxHead, math.MaxUint64)
	b.say(listens, oneDoorbell)
	requireProtocolBroken(t, p)
	s.v.quiet(t)
}
