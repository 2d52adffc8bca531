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

// crowdLimit is how long the members may take to all say the same: longer than a
// meeting, of which the member itself says what it waited for.
const crowdLimit = 90 * time.Second

// wellEnded is the last word of a member for which all went well.
const wellEnded = "exit status 0"

// crowd is many processes, which are watched together: what the first of them
// complains of is known at once.
type crowd struct {
	t       *testing.T
	members []*member
	words   chan word // has room for all that members have to say
	heard   []string  // what was waited for, from whom it has come
	watch   sync.WaitGroup
}

// member is one of them.
type member struct {
	number int
	cmd    *exec.Cmd
	in     io.Writer
	errors bytes.Buffer  // its standard error, complete when it is over, as
	last   string        // what it said last
	over   chan struct{} // closed when the process has ended
}

// word is a line that a member says, and in the end how it ended.
type word struct {
	from int
	text string
}

// newCrowd starts the members. They end with the test.
func newCrowd(t *testing.T, size int, manner string) *crowd {
	t.Helper()
	const most = 4 // words of a member
	c := &crowd{t: t, words: make(chan word, most*size)}
	t.Cleanup(c.disperse)
	for i := range size {
		c.members = append(c.members, c.start(i, manner))
	}
	return c
}

func (c *crowd) start(number int, manner string) *member {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", partVar, crowdPart, number, manner), prompt)
	m := &member{number: number, cmd: cmd, over: make(chan struct{})}
	cmd.Stderr = &m.errors
	in, err := cmd.StdinPipe()
	require.NoError(c.t, err)
	m.in = in
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, cmd.Start())
	c.watch.Go(func() { c.listenTo(m, out) })
	return m
}

// listenTo passes on what a member says.
func (c *crowd) listenTo(m *member, out io.Reader) {
	defer close(m.over)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		m.last = lines.Text()
		c.pass(word{m.number, m.last})
	}
	_ = m.cmd.Wait() // the state says it
	c.pass(word{m.number, m.cmd.ProcessState.String()})
}

func (c *crowd) pass(w word) {
	select {
	case c.words <- w:
	default: // nobody waits for so many
	}
}

// tell says a line to each.
func (c *crowd) tell(text func(number int) string) {
	for i, m := range c.members {
		if _, err := fmt.Fprintln(m.in, text(i)); err != nil {
			c.fail("member %d is told something, and does not listen: %v", i, err)
		}
	}
}

// hear waits for a word of each that begins so, and returns the words. The first that
// says something else fails the test, and so does silence.
func (c *crowd) hear(beginning string) []string {
	c.t.Helper()
	silence := time.NewTimer(crowdLimit)
	defer silence.Stop()
	c.heard = make([]string, len(c.members))
	for n := range c.members {
		select {
		case w := <-c.words:
			if !strings.HasPrefix(w.text, beginning) {
				c.fail("member %d says %q where %q was to come", w.from, w.text, beginning)
			}
			c.heard[w.from] = w.text
		case <-silence.C:
			c.fail("%d of %d members say %q, and the others nothing", n, len(c.members), beginning)
		}
	}
	return c.heard
}

// fail ends the test, with the last words of all from whom something was to come.
func (c *crowd) fail(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf(format, args...)
	for _, m := range c.members {
		_ = m.cmd.Process.Signal(syscall.SIGQUIT)
	}
	long := time.NewTimer(10 * time.Second)
	defer long.Stop()
	for _, m := range c.members {
		select {
		case <-m.over:
		case <-long.C:
			c.disperse()
		}
		if c.heard[m.number] != "" {
			continue
		}
		c.t.Logf("member %d, %v, said last %q:\n%s", m.number, m.cmd.ProcessState, m.last, m.errors.String())
	}
	c.t.FailNow()
}

// disperse ends those that have not ended.
func (c *crowd) disperse() {
	for _, m := range c.members {
		_ = m.cmd.Process.Kill()
	}
	c.watch.Wait()
}

// explainOnQuit has this process say, when it is asked to quit, where its goroutines
// are, and end.
func explainOnQuit() {
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT)
	go func() {
		<-quit
		fmt.Fprint(os.Stderr, stacks())
		os.Exit(2)
	}()
}

// stacks are those of all goroutines, each once with how many have it: a member has
// several hundred goroutines, which do few things.
func stacks() string {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // which keeps those of different pipes apart
	many := map[string]int{}
	for text := range strings.SplitSeq(all.String(), "\n\n") {
		var n int
		var stack strings.Builder
		for line := range strings.Lines(text) {
			if at, isFrame := strings.CutPrefix(line, "#\t"); isFrame {
				_, at, _ = strings.Cut(at, "\t") // but for the address
				stack.WriteString("\t" + at)
			} else if n == 0 {
				_, _ = fmt.Sscanf(line, "%d @", &n) // the first line of others is no such
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
