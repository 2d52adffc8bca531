package shm

import (
	"bytes"
	"io"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// eachKind runs test three times, each with another process in the role peer: with doorbells, with
// a peer that uses triggers, and with triggers at both ends.
func eachKind(t *testing.T, peer string, test func(t *testing.T, c transport.Conn, p *process)) {
	for _, k := range []struct {
		name, peer string
		opts       []Option
	}{
		{"doorbells", peer, nil},
		{"peer by token", peer + " by token", nil},
		{"both by token", peer + " by token", []Option{triggers}},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, p := acceptFrom(t, k.peer, k.opts...)
			test(t, c, p)
		})
	}
}

// acceptFrom starts a child process in the role peer, which dials, and returns its connection and
// the process.
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
			written := testwait.Start(func() error { return c.WriteFrames(transport.Frame{want}) })
			wantFrame(t, c, want)
			require.NoError(t, testwait.Finish(t, written))
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
	want := transport.Credentials{PID: p.Process.Pid, UID: syscall.Geteuid(), GID: syscall.Getegid()}
	require.Equal(t, transport.Identity{Process: &want}, id)
	require.Equal(t, processName(p.Process.Pid), c.RemoteAddr())
}

// A blocked read returns io.EOF when the peer is killed, even if another process was started after
// the connection was opened. The connection to that process goes on.
func TestKilledIdle(t *testing.T) {
	leakcheck.Check(t)
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		sibling, _ := acceptFrom(t, "echo")
		read := testwait.Start(func() error {
			_, err := c.NextFrame()
			return err
		})
		require.NoError(t, p.Process.Kill())
		require.Equal(t, io.EOF, testwait.Finish(t, read))
		require.NoError(t, sibling.WriteFrames(transport.Frame{[]byte("alive")}))
		wantFrame(t, sibling, []byte("alive"))
	})
}

// Bytes that the peer had written to the ring can be read after its death.
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

// A write fails when the peer dies. The peer was stopped, so the ring is full and the writer
// blocked.
func TestKilledDuringWrite(t *testing.T) {
	leakcheck.Check(t)
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		testwait.StopProcess(t, p.Process)
		written := testwait.Start(func() error {
			for {
				if err := c.WriteFrames(transport.Frame{make([]byte, 100_000)}); err != nil {
					return err
				}
			}
		})
		for unreadBytes(c.(*conn)) < inboxSize {
			runtime.Gosched()
		}
		require.NoError(t, p.Process.Kill())
		err := testwait.Finish(t, written)
		require.ErrorIs(t, err, syscall.EPIPE)
		var named *Error
		require.ErrorAs(t, err, &named)
		require.Equal(t, c.RemoteAddr(), named.Peer)
	})
}

// unreadBytes returns the number of bytes that c has written to the ring and the peer has not read,
// or -1 if the ring is corrupt.
func unreadBytes(c *conn) int {
	n, err := c.peerInbox.ring.Consumer().Readable()
	if err != nil {
		return -1
	}
	return n
}

// A process with an idle connection takes less than a hundredth of a core, also if it has to poll
// for triggers.
func TestIdleProcess(t *testing.T) {
	short.Skip(t, "measures an idle process for seconds")
	eachKind(t, "idle", func(t *testing.T, c transport.Conn, p *process) {
		require.NoError(t, c.WriteFrames(transport.Frame{[]byte("the only one")}))
		wantFrame(t, c, []byte("the only one"))
		share, err := strconv.ParseFloat(p.line(t), 64)
		require.NoError(t, err)
		t.Logf("%.3f %% of a core", 100*share)
		require.Positive(t, share)
		require.Less(t, share, maxIdleLoad)
		p.finish(t)
	})
}

// No bytes are lost if a peer is stopped for a while, so that the writer blocks at the full ring.
func TestStoppedAndContinued(t *testing.T) {
	eachKind(t, "echo", func(t *testing.T, c transport.Conn, p *process) {
		want := random(7, 2*inboxSize)
		testwait.StopProcess(t, p.Process)
		written := testwait.Start(func() error { return c.WriteFrames(transport.Frame{want}) })
		for unreadBytes(c.(*conn)) < inboxSize {
			runtime.Gosched()
		}
		testwait.WaitIdle(t)
		require.NoError(t, p.Process.Signal(syscall.SIGCONT))
		got, err := readFrame(c)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		require.NoError(t, testwait.Finish(t, written))
	})
}
