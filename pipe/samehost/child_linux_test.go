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

// nobody is the id of a user without privileges.
const nobody = 65534

// child is a subprocess and its standard output.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.Writer
	output *bufio.Reader
}

// startChild starts this test binary as a child process with attr. childArgs selects the child's
// main function and has its arguments, see childMain. The child is killed at the end of the test.
func startChild(t *testing.T, childArgs string, attr *syscall.SysProcAttr) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t))
	cmd.Env = append(os.Environ(), childVar+"="+childArgs, noExitDelay)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	restoreDumpable(t)
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{t, cmd, in, bufio.NewReader(out)}
}

// line blocks until the child has printed a line and returns it without the line break. It fails
// the test if the output ends first.
func (c *child) line() string {
	c.t.Helper()
	line, err := c.output.ReadString('\n')
	require.NoError(c.t, err)
	return strings.TrimSuffix(line, "\n")
}

// plan returns the text of the pipe's plan at the child, which the child prints as its next line,
// quoted.
func (c *child) plan() string {
	c.t.Helper()
	text, err := strconv.Unquote(c.line())
	require.NoError(c.t, err)
	return text
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// childSpec describes a child and the pipe to it.
type childSpec struct {
	dialect     pipe.Dialect
	listens     bool   // the child listens, else it dials
	restriction string // a key of restrictions, possibly with the prefix "late-"
	role        string // a key of the child's roles
	attr        *syscall.SysProcAttr
	policy      pipe.Policy // of the parent
}

func (m childSpec) childArgs(url string) string {
	return strings.Join([]string{string(m.dialect), url, m.restriction, m.role}, " ")
}

// connect starts a child with the role and restriction of m, opens a pipe between this process and
// the child, and returns the child and this end of the pipe. The child listens if m.listens is
// true, and dials otherwise. The error is that of Dial or Accept in this process.
func connect(t *testing.T, m childSpec) (*child, *pipe.Pipe, error) {
	t.Helper()
	c, err := newContext(pipe.Options{Name: "parent", Dialect: m.dialect, Policy: m.policy}, cma.New(cma.Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if m.listens {
		kid := startChild(t, m.childArgs("listen"), m.attr)
		p, err := c.Dial(ctx, kid.line())
		return kid, p, err
	}
	l, err := c.Listen(ctx, "uv://127.0.0.1:0")
	require.NoError(t, err)
	kid := startChild(t, m.childArgs(l.URLs()[0]), m.attr)
	p, err := l.Accept(ctx)
	return kid, p, err
}

// mustConnect starts a child with the role and restriction of m and opens a pipe to it, as connect
// does. It fails the test if the pipe cannot be opened.
func mustConnect(t *testing.T, m childSpec) (*child, *pipe.Pipe) {
	t.Helper()
	kid, p, err := connect(t, m)
	require.NoError(t, err)
	return kid, p
}

// restoreDumpable makes this process dumpable, so that other processes can read its memory.
// Starting a process as another user makes this process undumpable, because both share their memory
// between fork and exec.
func restoreDumpable(t *testing.T) {
	t.Helper()
	require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// binary returns the path of this test binary or, if this process is root, of a temporary copy that
// every user can execute.
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

// withoutRights reports whether this process has no rights to read processes of other users. As
// root it reports false, after it has run the calling test in a subprocess of an unprivileged user
// and required that it passes there; the caller must then return.
func withoutRights(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	require.Empty(t, os.Getenv(userVar), "still root")
	cmd := exec.CommandContext(t.Context(), binary(t), "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), userVar+"=nobody", noExitDelay, "TMPDIR=/tmp")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	restoreDumpable(t)
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}
