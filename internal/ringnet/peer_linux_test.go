package ringnet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// peerVar tells a child process what to do with the socket that is its third
// file.
const peerVar = "RINGNET_PEER"

// startPeer starts the other process and returns the stream to it. It ends when
// the stream does.
func startPeer(b testing.TB, order string) (transport.Stream, *exec.Cmd) {
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
	session, err := ringnet.NewSession(near, now(), transport.SessionConfig{Streams: 1, Client: true}, wait.Spin, addresses())
	require.NoError(b, err)
	b.Cleanup(func() {
		session.Close()
		_ = cmd.Wait()
	})
	s, err := session.Open()
	require.NoError(b, err)
	return s, cmd
}

// peer is the other process: an echo, a sink, or a source.
func peer(order string) {
	var what string
	var size int
	fmt.Sscan(order, &what, &size)
	c, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		panic(err)
	}
	session, err := ringnet.NewSession(c.(*net.UnixConn), now(), transport.SessionConfig{Streams: 1}, wait.Spin, addresses())
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
		if what != "source" {
			_, err = io.ReadFull(s, p)
		}
		if what != "sink" && err == nil {
			_, err = s.Write(p)
		}
	}
}

// A process that is killed ends its streams, after what it had written, while
// the other end reads and while it writes.
func TestKilledPeer(t *testing.T) {
	for what, call := range map[string]func(transport.Stream) error{
		"source": func(s transport.Stream) error { _, err := io.Copy(io.Discard, s); return err },
		"sink": func(s transport.Stream) error {
			for p := make([]byte, 100_000); ; {
				if _, err := s.Write(p); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, cmd := startPeer(t, what+" 100000")
			done := patience.Start(func() error { return call(s) })
			if what == "source" {
				_, err := io.ReadFull(s, make([]byte, 1<<20))
				require.NoError(t, err)
			}
			require.NoError(t, cmd.Process.Kill())
			err := patience.Finish(t, done)
			require.ErrorIs(t, err, io.EOF)
			require.NotEqual(t, io.EOF, err, "the stream had not ended")
		})
	}
}
