package tensorpipe_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// asEcho is the environment variable with the urls at which this program, as a subprocess, sends
// back the bytes of Conns.
const asEcho = "TENSORPIPE_TEST_ECHO"

// serveEcho listens for Conns at urls, prints the address, and sends back what arrives until the
// process is killed.
func serveEcho(urls []string) error {
	l, err := tensorpipe.ListenConn(context.Background(), urls...)
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

// startEcho starts a process that runs serveEcho at urls, and returns it and its address. The process
// is killed when the test ends.
func startEcho(t *testing.T, urls ...string) (server *exec.Cmd, addr string) {
	t.Helper()
	server = exec.CommandContext(t.Context(), os.Args[0])
	server.Env = append(os.Environ(), asEcho+"="+strings.Join(urls, " "))
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return server, strings.TrimSpace(line)
}

// TestConnBetweenProcesses checks that a Conn to another process of this machine takes the best
// transport that the server listens on, whichever was dialled, carries bytes both ways, and fails
// with ErrPeerLost when that process is killed.
func TestConnBetweenProcesses(t *testing.T) {
	for transport, urls := range map[string][]string{
		"uv":  {"uv://127.0.0.1:0"},
		"shm": {"uv://127.0.0.1:0", shm.Name + "://"},
	} {
		t.Run(transport, func(t *testing.T) {
			if err := shm.New().Viable(); transport == shm.Name && err != nil {
				t.Skip(err)
			}
			leakcheck.Check(t)
			server, addr := startEcho(t, urls...)
			conn, err := tensorpipe.DialConn(t.Context(), addr)
			require.NoError(t, err)
			require.Equal(t, transport, conn.(interface{ Plan() *pipe.Plan }).Plan().Transport)
			sent := strings.Repeat("0123456789", 100_000)
			go func() { _, _ = io.WriteString(conn, sent) }()
			got := make([]byte, len(sent))
			_, err = io.ReadFull(conn, got)
			require.NoError(t, err)
			require.True(t, sent == string(got))

			require.NoError(t, server.Process.Kill())
			_, err = conn.Read(got)
			require.ErrorIs(t, err, pipe.ErrPeerLost)
			require.NoError(t, conn.Close())
		})
	}
}

// TestDialConn checks that the Conns of DialConn and ListenConn are a net.Conn, and that everything
// that was written before Close arrives.
func TestDialConn(t *testing.T) {
	leakcheck.Check(t)
	l, err := tensorpipe.ListenConn(t.Context(), "uv://127.0.0.1:0")
	require.NoError(t, err)
	pair := func() (c1, c2 net.Conn, stop func(), err error) {
		if c1, err = tensorpipe.DialConn(t.Context(), l.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		c2, err = l.Accept()
		return c1, c2, func() { c1.Close(); c2.Close() }, err
	}
	nettest.TestConn(t, pair)
	for range 20 {
		dialled, accepted, stop, err := pair()
		require.NoError(t, err)
		sent := strings.Repeat("x", 200_000)
		_, err = io.WriteString(dialled, sent)
		require.NoError(t, err)
		require.NoError(t, dialled.Close())
		got, err := io.ReadAll(accepted)
		require.NoError(t, err)
		require.Len(t, got, len(sent))
		stop()
	}
	require.NoError(t, l.Close())
}
