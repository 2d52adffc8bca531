package samehost_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// nobody is a user without rights.
const nobody = 65534

// child is another process, and what it says.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Writer
	said *bufio.Reader
}

// spawn starts this test binary as a child with that part, see play. It ends with
// the test.
func spawn(t *testing.T, part string, attr *syscall.SysProcAttr) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t))
	cmd.Env = append(os.Environ(), partVar+"="+part, prompt)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stayDumpable(t)
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{t, cmd, in, bufio.NewReader(out)}
}

// line is the next that the child says.
func (c *child) line() string {
	c.t.Helper()
	line, err := c.said.ReadString('\n')
	require.NoError(c.t, err)
	return strings.TrimSuffix(line, "\n")
}

// plan is the child's, in words.
func (c *child) plan() string {
	c.t.Helper()
	text, err := strconv.Unquote(c.line())
	require.NoError(c.t, err)
	return text
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// meeting is how a test wants to have a child.
type meeting struct {
	dialect string
	listens bool   // the child does
	spoil   string // what the child spoils
	role    string // of the child
	attr    *syscall.SysProcAttr
	policy  pipe.Policy // of the parent
}

func (m meeting) part(url string) string {
	return strings.Join([]string{m.dialect, url, m.spoil, m.role}, " ")
}

// meet starts a child and returns the parent's pipe to it, or why there is none.
func meet(t *testing.T, m meeting) (*child, *pipe.Pipe, error) {
	t.Helper()
	c, err := newContext(pipe.Options{Name: "parent", Dialect: m.dialect, Policy: m.policy}, cma.New(cma.Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if m.listens {
		kid := spawn(t, m.part("listen"), m.attr)
		p, err := c.Dial(ctx, kid.line())
		return kid, p, err
	}
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	require.NoError(t, err)
	kid := spawn(t, m.part(l.URLs()[0]), m.attr)
	p, err := l.Accept(ctx)
	return kid, p, err
}

// mustMeet is meet where nothing is in the way.
func mustMeet(t *testing.T, m meeting) (*child, *pipe.Pipe) {
	t.Helper()
	kid, p, err := meet(t, m)
	require.NoError(t, err)
	return kid, p
}

// stayDumpable undoes what comes of starting a process as another user: between
// fork and exec the two share their memory, and the kernel then calls that of
// both not dumpable.
func stayDumpable(t *testing.T) {
	t.Helper()
	require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// binary is where every user finds this test binary.
func binary(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		return os.Args[0]
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	from, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer from.Close()
	path := filepath.Join(dir, "samehost.test")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	return path
}

// withoutRights reports whether this process runs the calling test as a user that
// may not read other users' processes. If not, it runs the test in one that does.
func withoutRights(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	require.Empty(t, os.Getenv(userVar), "root again")
	cmd := exec.CommandContext(t.Context(), binary(t), "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), userVar+"=nobody", prompt, "TMPDIR=/tmp")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	stayDumpable(t)
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}
