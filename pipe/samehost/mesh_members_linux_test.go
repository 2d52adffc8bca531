package samehost_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// meshLimit bounds how long the members take to print the same line. It is longer than the timeouts
// of the members, so that they can print an error first.
const meshLimit = 90 * time.Second

// exitOK is the last line of a member that succeeded.
const exitOK = "exit status 0"

// mesh is many processes whose output is read together, so that the first failure is reported at
// once.
type mesh struct {
	t       *testing.T
	members []*member
	queue   chan memberLine // buffers all lines of the members
	lines   []string        // by member, the line that the test waits for
	readers sync.WaitGroup
}

// member is one process of a mesh.
type member struct {
	number int
	cmd    *exec.Cmd
	in     io.Writer
	errors bytes.Buffer  // its standard error, complete once exited is closed
	last   string        // its last line, likewise
	exited chan struct{} // closed when the process has exited
}

// memberLine is a line that a member prints, and finally its exit status.
type memberLine struct {
	from int
	text string
}

// newMesh starts size members of a mesh with this configuration, and returns the mesh. The members
// are killed at the end of the test.
func newMesh(t *testing.T, size int, meshConfig string) *mesh {
	t.Helper()
	const most = 4 // lines of a member
	c := &mesh{t: t, queue: make(chan memberLine, most*size)}
	t.Cleanup(c.killAll)
	for i := range size {
		c.members = append(c.members, c.start(i, meshConfig))
	}
	return c
}

func (c *mesh) start(number int, meshConfig string) *member {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", childVar, meshChild, number, meshConfig), noExitDelay)
	m := &member{number: number, cmd: cmd, exited: make(chan struct{})}
	cmd.Stderr = &m.errors
	in, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	m.in = in
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	c.readers.Go(func() { c.readLines(m, out) })
	return m
}

// readLines reads the output of member m to its end. It queues each line for waitForAll, then waits
// for the process to end, queues its exit status and closes m.exited.
func (c *mesh) readLines(m *member, out io.Reader) {
	defer close(m.exited)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		m.last = lines.Text()
		c.deliver(memberLine{m.number, m.last})
	}
	_ = m.cmd.Wait() // the error is in ProcessState
	c.deliver(memberLine{m.number, m.cmd.ProcessState.String()})
}

func (c *mesh) deliver(w memberLine) {
	select {
	case c.queue <- w:
	default: // the test has failed already
	}
}

// sendAll writes the line text(number) to the standard input of each member. If that fails, it
// fails the test.
func (c *mesh) sendAll(text func(number int) string) {
	for i, m := range c.members {
		if _, err := fmt.Fprintln(m.in, text(i)); err != nil {
			c.fail("member %d cannot be written to: %v", i, err)
		}
	}
}

// waitForAll blocks until each member has printed a line that starts with the text beginning, and
// returns the lines by member. If a member prints another line or ends, or a line is late, it fails
// the test. The result is also c.lines, until the next call.
func (c *mesh) waitForAll(beginning string) []string {
	c.t.Helper()
	timer := time.NewTimer(meshLimit)
	defer timer.Stop()
	c.lines = make([]string, len(c.members))
	for n := range c.members {
		select {
		case w := <-c.queue:
			if !strings.HasPrefix(w.text, beginning) {
				c.fail("member %d prints %q instead of %q", w.from, w.text, beginning)
			}
			c.lines[w.from] = w.text
		case <-timer.C:
			c.fail("only %d of %d members print %q", n, len(c.members), beginning)
		}
	}
	return c.lines
}

// fail ends the test with the message that format and args make. Before that it makes all members
// print the stacks of their goroutines and exit, and logs the output of those whose line is
// missing.
func (c *mesh) fail(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf(format, args...)
	for _, m := range c.members {
		_ = m.cmd.Process.Signal(syscall.SIGQUIT)
	}
	long := time.NewTimer(10 * time.Second)
	defer long.Stop()
	for _, m := range c.members {
		select {
		case <-m.exited:
		case <-long.C:
			c.killAll()
		}
		if c.lines[m.number] != "" {
			continue
		}
		c.t.Logf("member %d, %v, last line %q:\n%s", m.number, m.cmd.ProcessState, m.last, m.errors.String())
	}
	c.t.FailNow()
}

// killAll kills all members that still run, and waits until their output has been read.
func (c *mesh) killAll() {
	for _, m := range c.members {
		_ = m.cmd.Process.Kill()
	}
	c.readers.Wait()
}

// dumpStacksOnQuit makes this process print the stacks of its goroutines and exit when it receives
// SIGQUIT.
func dumpStacksOnQuit() {
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT)
	go func() {
		<-quit
		fmt.Fprint(os.Stderr, stacks())
		os.Exit(2)
	}()
}

// stacks returns the stacks of all goroutines of this process as text. Equal stacks are printed
// once, with their number, because a member has several hundred goroutines with few different
// stacks.
func stacks() string {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // with arguments, by which the stacks of different pipes differ
	many := map[string]int{}
	for text := range strings.SplitSeq(all.String(), "\n\n") {
		var n int
		var stack strings.Builder
		for line := range strings.Lines(text) {
			if at, isFrame := strings.CutPrefix(line, "#\t"); isFrame {
				_, at, _ = strings.Cut(at, "\t") // without the address
				stack.WriteString("\t" + at)
			} else if n == 0 {
				_, _ = fmt.Sscanf(line, "%d @", &n) // no other line has this form
			}
		}
		many[strings.TrimSuffix(stack.String(), "\n")] += n
	}
	var out strings.Builder
	for _, stack := range slices.SortedFunc(maps.Keys(many), func(a, b string) int { return many[b] - many[a] }) {
		fmt.Fprintf(&out, "%d goroutines:\n%s\n", many[stack], stack)
	}
	return out.String()
}
