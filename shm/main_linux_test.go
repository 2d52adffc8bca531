package shm

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// peerVar is the environment variable with the role of a child process, addrVar that with the
// address to dial.
const (
	peerVar = "SHM_TEST_PEER"
	addrVar = "SHM_TEST_ADDR"
)

func TestMain(m *testing.M) {
	name := os.Getenv(peerVar)
	if name == "" {
		leakcheck.Main(m)
	}
	if err := peers[name](os.Getenv(addrVar)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// process is a child process that runs this test binary.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// start starts a child process that runs this test binary in the role name with the argument addr.
// Its descriptors from 3 on are the files. It exits at the end of its input, and is killed when the
// test ends.
func start(t testing.TB, name, addr string, files ...*os.File) *process {
	t.Helper()
	require.Contains(t, peers, name)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerVar+"="+name, addrVar+"="+addr, "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &process{cmd, in, bufio.NewScanner(out)}
}

// line blocks until the child has written a line of output and returns it. The test fails if the
// output ends.
func (p *process) line(t testing.TB) string {
	t.Helper()
	require.True(t, p.out.Scan(), "the peer ended early: %v", p.out.Err())
	return p.out.Text()
}

// finish closes the child's input, waits until the child exits, and checks that it has succeeded.
func (p *process) finish(t testing.TB) {
	t.Helper()
	require.NoError(t, p.in.Close())
	require.NoError(t, p.Wait())
}
