package shm

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
}

func TestOtherUserDials(t *testing.T) {
	needRoot(t)
	l, err := New().Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	p := start(t, "stranger", l.Addr())
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.NextFrame()
	require.ErrorIs(t, err, ErrOtherUser)
	require.ErrorIs(t, c.ReadBody(), ErrOtherUser)
	require.ErrorIs(t, c.WriteFrames(), ErrOtherUser)
	require.NoError(t, c.CloseWrite())
	var failed *HandshakeError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, c.RemoteAddr(), failed.Peer)
	require.Contains(t, p.line(t), "shm: dial "+l.Addr())
	p.finish(t)
	require.NoError(t, c.Close())
	_, err = c.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

func TestOtherUserListens(t *testing.T) {
	needRoot(t)
	p := start(t, "strange listener", "")
	addr := p.line(t)
	_, err := New().Dial(t.Context(), addr)
	require.ErrorIs(t, err, ErrOtherUser)
	require.ErrorContains(t, err, addr)
	p.finish(t)
}

func TestOtherUserIsWelcome(t *testing.T) {
	needRoot(t)
	c, p := acceptFrom(t, "stranger", WithOtherUsers())
	id, err := c.(transport.Identified).PeerIdentity()
	require.NoError(t, err)
	require.Equal(t, nobody, id.UID)
	require.NoError(t, c.WriteFrames(transport.Frame{[]byte("hello")}))
	wantFrame(t, c, []byte("hello"))
	require.NoError(t, c.CloseWrite())
	p.finish(t)
}
