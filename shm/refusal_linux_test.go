package shm

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// An end that is turned away says what it was told, whatever that is.
func TestRefusalIsTold(t *testing.T) {
	leakcheck.Check(t)
	for _, c := range []struct{ said, want string }{
		{"refused:too many open files", `the listening end refuses: "too many open files"`},
		{"refused:\x00\xff\n", `the listening end refuses: "\x00\xff\n"`},
		{"refused:" + strings.Repeat("a", 4*maxReason), `"` + strings.Repeat("a", maxReason) + `"`},
		{"refused:", "the listening end refuses: EOF"},
		{"refused", ErrProtocol.Error()},
	} {
		silent, err := net.ListenUnix("unix", socketAddr(""))
		require.NoError(t, err)
		dialled := patience.Start(func() error {
			_, err := New().Dial(t.Context(), strings.TrimPrefix(silent.Addr().String(), "@"))
			return err
		})
		s, err := silent.AcceptUnix()
		require.NoError(t, err)
		g, err := receive(s)
		require.NoError(t, err)
		g.close()
		_, err = s.Write([]byte(c.said))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.ErrorContains(t, patience.Finish(t, dialled), c.want)
		require.NoError(t, silent.Close())
	}
}

// A listening end tells why to peers of ours that it turns away, and nothing to
// others, or to those that break the rules.
func TestRefusalIsForPeersOfOurs(t *testing.T) {
	leakcheck.Check(t)
	for _, c := range []struct {
		ours bool
		why  error
		want string
	}{
		{true, ErrOtherUser, refusing + ErrOtherUser.Error()},
		{true, protocolError("nonsense"), ""},
		{false, ErrOtherUser, ""},
	} {
		here, there, err := socketPair()
		require.NoError(t, err)
		mine, theirs := newHandshake(New(), here), newHandshake(New(), there)
		if !c.ours {
			theirs.transport = New(tokens)
		}
		require.NoError(t, theirs.share())
		require.NoError(t, mine.take())
		mine.turnAway(c.why)
		mine.undo()
		var heard [2 * maxReason]byte
		n, _ := there.Read(heard[:])
		require.Equal(t, c.want, string(heard[:n]))
		theirs.undo()
	}
}
