package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/deadline"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Another process truncates its inbox while a frame of several times its size is being copied
// there. The write fails; this process and its other connections go on. Sometimes the other process
// is too slow and truncates the inbox between two pieces, so there are several rounds, until one
// hits a copy.
func TestShrunkDuringCopy(t *testing.T) {
	leakcheck.Check(t)
	frame := transport.Frame{random(1, 8*inboxSize)}
	for range 50 {
		l := listen(t)
		p := start(t, "shrinker", l.Addr())
		accepted, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.Equal(t, "ready", p.line(t))
		err = testwait.Finish(t, testwait.Start(func() error { return accepted.WriteFrames(frame) }))
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorIs(t, err, segment.ErrFault)
		at := faultOffset(t, accepted.(*conn).peerInbox.data, err)
		require.Equal(t, "shrunk", p.line(t))
		require.NoError(t, accepted.Close())
		wantAccepted(t, l)
		p.finish(t)
		if at%piece != 0 {
			return
		}
	}
	t.Fatal("no copy was cut")
}

// faultOffset returns the offset in s of the fault that err, an error of segment.Guard, reports.
func faultOffset(t *testing.T, s *segment.Segment, err error) int {
	t.Helper()
	_, text, found := strings.Cut(err.Error(), "(at 0x")
	require.True(t, found, "%v", err)
	var addr uintptr
	_, scanErr := fmt.Sscanf(text, "%x", &addr)
	require.NoError(t, scanErr, text)
	at := int(addr - uintptr(unsafe.Pointer(unsafe.SliceData(s.Bytes()))))
	require.GreaterOrEqual(t, at, 0)
	require.Less(t, at, inboxSize)
	return at
}

// shrinkDuringWrite is a child process that dials addr. It reads more bytes than its inbox holds,
// and then truncates the inbox in the middle of the piece that the writer is copying next.
func shrinkDuringWrite(addr string) error {
	socket, err := net.DialUnix("unix", nil, socketAddr(addr))
	if err != nil {
		return err
	}
	defer socket.Close() // its end would be the end of the connection
	inbox, target, err := greetUnsealed(socket)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	consumer := inbox.ring.Consumer()
	err = consumer.Begin()
	drained, ahead := 0, 0
	for drained < inboxSize*5/2 && err == nil {
		ahead, err = consumer.Readable()
		drained += ahead
		err = errors.Join(err, discardBytes(consumer, target, ahead))
	}
	for ahead = 0; ahead == 0 && err == nil; {
		ahead, err = consumer.Readable()
	}
	if err == nil {
		next := (drained + ahead) % inboxSize
		err = inbox.data.File().Truncate(int64(next + piece/2))
	}
	// With space for a whole ring the writer reaches that memory, wherever it was.
	err = errors.Join(err, discardBytes(consumer, target, inboxSize))
	fmt.Println("shrunk")
	_, readErr := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, readErr)
}

// discardBytes reads up to n bytes of the ring, discards them, and sends the trigger for them to
// target.
func discardBytes(consumer *ring.Consumer, target *peerReactor, n int) error {
	_, _, err := consumer.Next(n)
	return errors.Join(err, consumer.Publish(), target.send(target.outbox, new(deadline.Deadline), newWakeup()))
}

// greetUnsealed performs a handshake over socket as a C++ client does, with memory that is not
// sealed. It returns this end's inbox and the peer's reactor.
func greetUnsealed(socket *net.UnixConn) (inbox memory, target *peerReactor, err error) {
	reactor, err := createUnsealed(reactorSize)
	if err != nil {
		return inbox, nil, err
	}
	if inbox, err = createUnsealed(inboxSize); err != nil {
		return inbox, nil, err
	}
	ownInbox := greeting{files: [greetingFiles]*os.File{
		reactor.header.File(), reactor.data.File(), inbox.header.File(), inbox.data.File(),
	}}
	if err := ownInbox.send(socket); err != nil {
		return inbox, nil, err
	}
	greeting, err := receiveGreeting(socket)
	if err != nil {
		return inbox, nil, err
	}
	defer greeting.close()
	reactorMemory, err := mapRing(greeting.files[0], greeting.files[1])
	if err != nil {
		return inbox, nil, err
	}
	unreachable := func() bool { return false }
	return inbox, newPeerReactor(reactorMemory, [2]uint32{greeting.inTrigger, greeting.outTrigger}, unreachable), nil
}
