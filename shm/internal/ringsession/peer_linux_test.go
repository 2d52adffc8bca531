package ringsession_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// peerVar is the environment variable that makes a child process run peer. Its descriptor 3 is the
// socket.
const peerVar = "RINGSESSION_PEER"

// startPeer starts the other process, which does what order states (see peer), and returns a stream
// to it and its command. When the test ends, the session is closed and the process has exited.
func startPeer(b testing.TB, order string) (transport.Stream, *exec.Cmd) {
	b.Helper()
	return startPeerOf(b, order, wait.Config{Spin: wait.Spin})
}

// startPeerOf does what startPeer does; waits determines how calls of this end wait.
func startPeerOf(b testing.TB, order string, waits wait.Config) (transport.Stream, *exec.Cmd) {
	b.Helper()
	near, far := sockets(b)
	f, err := far.File()
	require.NoError(b, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerVar+"="+order)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{f}
	require.NoError(b, cmd.Start())
	require.NoError(b, f.Close())
	require.NoError(b, far.Close())
	session, err := ringsession.NewSession(near, ready(), transport.SessionConfig{MaxStreams: 1, Client: true}, waits, addresses())
	require.NoError(b, err)
	b.Cleanup(func() {
		session.Close()
		_ = cmd.Wait()
	})
	s, err := session.Open()
	require.NoError(b, err)
	return s, cmd
}

// peer is the other process. order is a role and a size in bytes: "echo" sends back blocks of that
// size, "sink" only reads them, and "source" only writes them. It returns when the stream fails.
func peer(order string) {
	var role string
	var size int
	fmt.Sscan(order, &role, &size)
	c, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		panic(err)
	}
	session, err := ringsession.NewSession(c.(*net.UnixConn), ready(), transport.SessionConfig{MaxStreams: 1}, wait.Config{Spin: wait.Spin}, addresses())
	if err != nil {
		panic(err)
	}
	defer session.Close()
	s, err := session.Accept(context.Background())
	if err != nil {
		panic(err)
	}
	p := make([]byte, size)
	for err == nil {
		if role != "source" {
			_, err = io.ReadFull(s, p)
		}
		if role != "sink" && err == nil {
			_, err = s.Write(p)
		}
	}
}

// When a process is killed, calls on its streams at the other end fail. Reads first return the
// bytes that were written before.
func TestKilledPeer(t *testing.T) {
	for role, call := range map[string]func(transport.Stream) error{
		"source": func(s transport.Stream) error { _, err := io.Copy(io.Discard, s); return err },
		"sink": func(s transport.Stream) error {
			for p := make([]byte, 100_000); ; {
				if _, err := s.Write(p); err != nil {
					return err
				}
			}
		},
	} {
		for name, waits := range waitConfigs {
			t.Run(role+" "+name, func(t *testing.T) { testKilledPeer(t, role, waits, call) })
		}
	}
}

func testKilledPeer(t *testing.T, role string, waits wait.Config, call func(transport.Stream) error) {
	s, cmd := startPeerOf(t, role+" 100000", waits)
	done := testwait.Start(func() error { return call(s) })
	if role == "source" {
		_, err := io.ReadFull(s, make([]byte, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Process.Kill())
	err := testwait.Finish(t, done)
	require.ErrorIs(t, err, io.EOF)
	require.NotEqual(t, io.EOF, err, "the stream was not closed by its writer")
}

func TestMain(m *testing.M) {
	if order := os.Getenv(peerVar); order != "" {
		peer(order)
		return
	}
	if kind := os.Getenv(echoDoorbellsVar); kind != "" {
		echoDoorbells(kind)
		return
	}
	leakcheck.Main(m)
}
