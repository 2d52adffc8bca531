package shm

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A listener creates memory for several clients concurrently. Only its greetings are sent one after
// the other.
func TestMemoryIsCreatedConcurrently(t *testing.T) {
	leakcheck.Check(t)
	l := listen(t, func(tr *Transport) { tr.handshakeTimeout = time.Hour })
	newRawPeer(t, l).handshake(t, l, 0, 1) // with what all peers share
	line := &l.(*listener).queueMu
	line.Lock()
	unlock := sync.OnceFunc(line.Unlock)
	defer unlock()

	rawPeers := []*rawPeer{newRawPeer(t, l), newRawPeer(t, l), newRawPeer(t, l)}
	_, before := inUse(t)
	for _, s := range rawPeers {
		s.sendGreeting(t, encodeTriggers(0, 1), s.files()...)
	}
	const each = 4 + 2 // two rings of the peer, and one of this end
	made := func() bool {
		_, now := inUse(t)
		return now-before == each*len(rawPeers)
	}
	require.Eventually(t, made, testwait.Limit, time.Millisecond)
	unlock()
	for range rawPeers {
		c, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.WriteFrames(transport.Frame{[]byte("hello")}))
		require.NoError(t, c.Close())
	}
}

// No memory is created for a client that has closed. One that has only closed its writing half is
// still there.
func TestNoMemoryForClosedClient(t *testing.T) {
	leakcheck.Check(t)
	s, h := rawPeerWithGreeting(t)
	require.NoError(t, s.CloseWrite())
	require.NoError(t, h.accept())
	require.NotNil(t, h.ownInbox.data)

	s, h = rawPeerWithGreeting(t)
	require.NoError(t, s.Close())
	require.ErrorIs(t, h.accept(), io.ErrUnexpectedEOF)
	require.Nil(t, h.ownInbox.data)
}

// rawPeerWithGreeting returns a raw peer that has sent its greeting, and this end's handshake with
// that peer, which is aborted when the test ends.
func rawPeerWithGreeting(t *testing.T) (*rawPeer, *handshake) {
	t.Helper()
	here, there, err := socketPair()
	require.NoError(t, err)
	h := newHandshake(New(), here)
	t.Cleanup(h.abort)
	s := rawPeerAt(t, there)
	s.sendGreeting(t, encodeTriggers(0, 1), s.files()...)
	return s, h
}

// The error of Dial at a rejected client contains the reason that the listener has sent.
func TestRejectionReason(t *testing.T) {
	leakcheck.Check(t)
	for _, c := range []struct{ said, want string }{
		{"refused:too many open files", `the listening end refuses: "too many open files"`},
		{"refused:\x00\xff\n", `the listening end refuses: "\x00\xff\n"`},
		{"refused:" + strings.Repeat("a", 4*maxReason), `"` + strings.Repeat("a", maxReason) + `"`},
		{"refused:", "the listening end refuses: EOF"},
		{"refused", ErrProtocol.Error()},
	} {
		silentListener, err := net.ListenUnix("unix", socketAddr(""))
		require.NoError(t, err)
		dialled := testwait.Start(func() error {
			_, err := New().Dial(t.Context(), strings.TrimPrefix(silentListener.Addr().String(), "@"))
			return err
		})
		s, err := silentListener.AcceptUnix()
		require.NoError(t, err)
		g, err := receiveGreeting(s)
		require.NoError(t, err)
		g.close()
		_, err = s.Write([]byte(c.said))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.ErrorContains(t, testwait.Finish(t, dialled), c.want)
		require.NoError(t, silentListener.Close())
	}
}

// A listener sends the reason to peers of this package that it rejects, and nothing to others or to
// peers that violate the protocol.
func TestRejectionIsSentOnlyToOwnPeers(t *testing.T) {
	leakcheck.Check(t)
	for _, c := range []struct {
		ours bool
		why  error
		want string
	}{
		{true, ErrOtherUser, rejectPrefix + ErrOtherUser.Error()},
		{true, protocolError("nonsense"), ""},
		{false, ErrOtherUser, ""},
	} {
		here, there, err := socketPair()
		require.NoError(t, err)
		ownInbox, peerInbox := newHandshake(New(), here), newHandshake(New(), there)
		if !c.ours {
			peerInbox.transport = New(triggers)
		}
		require.NoError(t, peerInbox.share())
		require.NoError(t, ownInbox.receiveMemory())
		ownInbox.reject(c.why)
		ownInbox.abort()
		var event [2 * maxReason]byte
		n, _ := there.Read(event[:])
		require.Equal(t, c.want, string(event[:n]))
		peerInbox.abort()
	}
}
