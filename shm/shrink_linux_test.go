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

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Another process takes the end of its inbox away while a frame of several rings is
// being copied there. The writer gets an error, this process goes on, and so do its
// other connections. Now and then the other process is too slow and finds the writer
// between two pieces, so there are several rounds, until the copy was cut within one.
func TestShrunkWithinACopy(t *testing.T) {
	leakcheck.Check(t)
	frame := transport.Frame{random(1, 8*inboxSize)}
	for range 50 {
		l := listen(t)
		p := start(t, "shrinker", l.Addr())
		accepted, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.Equal(t, "ready", p.line(t))
		err = patience.Finish(t, patience.Start(func() error { return accepted.WriteFrames(frame) }))
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorIs(t, err, segment.ErrFault)
		at := faultWithin(t, accepted.(*conn).theirs.data, err)
		require.Equal(t, "shrunk", p.line(t))
		require.NoError(t, accepted.Close())
		wantWelcome(t, l)
		p.finish(t)
		if at%piece != 0 {
			return
		}
	}
	t.Fatal("no copy was cut")
}

// faultWithin is where in the memory the fault was.
func faultWithin(t *testing.T, s *segment.Segment, err error) int {
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

// shrinkUnderAWriter takes what comes, more than its inbox holds, and then half of the
// memory that the next piece is being copied to, and all behind it.
func shrinkUnderAWriter(addr string) error {
	socket, err := net.DialUnix("unix", nil, socketAddr(addr))
	if err != nil {
		return err
	}
	defer socket.Close() // its end would be the end of the connection
	inbox, box, err := greetUnsealed(socket)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	from := inbox.ring.Consumer()
	err = from.Begin()
	taken, ahead := 0, 0
	for taken < inboxSize*5/2 && err == nil {
		ahead, err = from.Readable()
		taken += ahead
		err = errors.Join(err, pass(from, box, ahead))
	}
	for ahead = 0; ahead == 0 && err == nil; {
		ahead, err = from.Readable()
	}
	if err == nil {
		next := (taken + ahead) % inboxSize
		err = inbox.data.File().Truncate(int64(next + piece/2))
	}
	// With room for a whole ring the writer gets there, wherever it was.
	err = errors.Join(err, pass(from, box, inboxSize))
	fmt.Println("shrunk")
	_, ended := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, ended)
}

// pass takes up to n bytes without looking at them, and says that there is room.
func pass(from *ring.Consumer, box *letterbox, n int) error {
	_, _, err := from.Next(n)
	return errors.Join(err, from.Publish(), box.leave(box.outbox, new(deadline), newBell()))
}

// greetUnsealed does a handshake as C++ does, with memory that can be taken away.
func greetUnsealed(socket *net.UnixConn) (inbox memory, box *letterbox, err error) {
	reactor, err := createUnsealed(reactorSize)
	if err != nil {
		return inbox, nil, err
	}
	if inbox, err = createUnsealed(inboxSize); err != nil {
		return inbox, nil, err
	}
	mine := greeting{files: [passed]*os.File{
		reactor.header.File(), reactor.data.File(), inbox.header.File(), inbox.data.File(),
	}}
	if err := mine.send(socket); err != nil {
		return inbox, nil, err
	}
	theirs, err := receive(socket)
	if err != nil {
		return inbox, nil, err
	}
	defer theirs.close()
	posts, err := open(theirs.files[0], theirs.files[1])
	if err != nil {
		return inbox, nil, err
	}
	alone := func() bool { return false }
	return inbox, newLetterbox(posts, [2]uint32{theirs.inToken, theirs.outToken}, alone), nil
}
