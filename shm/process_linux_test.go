package shm

import (
	"bytes"
	"io"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// eachKind runs a test with another process that rings doorbells, with one that
// leaves tokens, and with both ends leaving tokens.
func eachKind(t *testing.T, peer string, test func(t *testing.T, c transport.Conn, p *process)) {
	for _, k := range []struct {
		name, peer string
		opts       []Option
	}{
		{"doorbells", peer, nil},
		{"peer by token", peer + " by token", nil},
		{"both by token", peer + " by token", []Option{tokens}},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, p := acceptFrom(t, k.peer, k.opts...)
			test(t, c, p)
		})
	}
}

// acceptFrom starts a peer that dials, and accepts it.
func acceptFrom(t testing.TB, peer string, opts ...Option) (transport.Conn, *process) {
	t.Helper()
	l, err := New(opts...).Listen(t.Context(), "")
	require.NoError(t, err)
	defer l.Close()
	p := start(t, peer, l.Addr())
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.Equal(t, "ready", p.line(t))
	return c, p
}

func TestEchoOfAnotherProcess(t *testing.T) {
	leakcheck.Check(t)
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		for i, size := range []int{0, 1, 8, 100_000, inboxSize, 3*inboxSize + 1} {
			want := random(byte(i), size)
			written := patience.Start(func() error { return c.WriteFrames(transport.Frame{want}) })
			wantFrame(t, c, want)
			require.NoError(t, patience.Finish(t, written))
		}
		require.NoError(t, c.CloseWrite())
		_, err := c.NextFrame()
		require.Equal(t, io.EOF, err)
		p.finish(t)
	})
}

func TestIdentity(t *testing.T) {
	c, p := acceptFrom(t, "echo")
	id, err := c.(transport.Identified).PeerIdentity()
	require.NoError(t, err)
	require.Equal(t, transport.Identity{PID: p.Process.Pid, UID: syscall.Geteuid(), GID: syscall.Getegid()}, id)
	require.Equal(t, processName(p.Process.Pid), c.RemoteAddr())
}

// A process that was started later does not keep the dead one's socket open.
func TestKilledIdle(t *testing.T) {
	leakcheck.Check(t)
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		sibling, _ := acceptFrom(t, "echo")
		read := patience.Start(func() error {
			_, err := c.NextFrame()
			return err
		})
		require.NoError(t, p.Process.Kill())
		require.Equal(t, io.EOF, patience.Finish(t, read))
		require.NoError(t, sibling.WriteFrames(transport.Frame{[]byte("alive")}))
		wantFrame(t, sibling, []byte("alive"))
	})
}

// What the peer had put into the ring is read, though it is dead.
func TestKilledWithinAFrame(t *testing.T) {
	leakcheck.Check(t)
	for _, peer := range []string{"half", "half by token"} {
		t.Run(peer, func(t *testing.T) {
			c, p := acceptFrom(t, peer)
			require.NoError(t, p.Process.Kill())
			p.Wait()
			wantFrame(t, c, []byte("whole"))
			n, err := c.NextFrame()
			require.NoError(t, err)
			require.EqualValues(t, 8, n)
			got := make([]byte, 8)
			require.NoError(t, c.ReadBody(got[:4]))
			require.Equal(t, "half", string(got[:4]))
			for range 2 {
				require.Equal(t, io.ErrUnexpectedEOF, c.ReadBody(got[4:]))
			}
		})
	}
}

// The peer was stopped, so that the ring is full and the writer asleep.
func TestKilledUnderAWriter(t *testing.T) {
	leakcheck.Check(t)
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		patience.Stop(t, p.Process)
		written := patience.Start(func() error {
			for {
				if err := c.WriteFrames(transport.Frame{make([]byte, 100_000)}); err != nil {
					return err
				}
			}
		})
		for full(c.(*conn)) < inboxSize {
			runtime.Gosched()
		}
		require.NoError(t, p.Process.Kill())
		err := patience.Finish(t, written)
		require.ErrorIs(t, err, syscall.EPIPE)
		var named *Error
		require.ErrorAs(t, err, &named)
		require.Equal(t, c.RemoteAddr(), named.Peer)
	})
}

// full is how many bytes are in the ring to the peer.
func full(c *conn) int {
	n, err := c.theirs.ring.Consumer().Readable()
	if err != nil {
		return -1
	}
	return n
}

// A process with a connection on which nothing happens takes less than a hundredth of a
// core, also where it has to look for the tokens of its peer.
func TestIdleProcess(t *testing.T) {
	eachKind(t, "idle", func(t *testing.T, c transport.Conn, p *process) {
		require.NoError(t, c.WriteFrames(transport.Frame{[]byte("the only one")}))
		wantFrame(t, c, []byte("the only one"))
		share, err := strconv.ParseFloat(p.line(t), 64)
		require.NoError(t, err)
		t.Logf("%.3f %% of a core", 100*share)
		require.Positive(t, share)
		require.Less(t, share, mostIdle)
		p.finish(t)
	})
}

// A peer that is stopped for a while loses nothing. The writer at the full ring
// sleeps.
func TestStoppedAndContinued(t *testing.T) {
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		want := random(7, 2*inboxSize)
		patience.Stop(t, p.Process)
		written := patience.Start(func() error { return c.WriteFrames(transport.Frame{want}) })
		for full(c.(*conn)) < inboxSize {
			runtime.Gosched()
		}
		patience.Asleep(t)
		require.NoError(t, p.Process.Signal(syscall.SIGCONT))
		got, err := readFrame(c)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		require.NoError(t, patience.Finish(t, written))
	})
}
