package procgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// The test passes these environment variables to each member.
const (
	rankVar     = "PROCGROUP_RANK"
	worldVar    = "PROCGROUP_WORLD"
	restartsVar = "PROCGROUP_RESTARTS"
	storeVar    = "PROCGROUP_STORE"
)

// Member is one process of a group, as seen within that process. Start makes it and passes it to the
// function of the member.
type Member struct {
	Rank, World int
	Restarts    int    // how often Group.Restart has replaced the process of this rank
	Store       string // a file:// URL, the same for all members

	ctx   context.Context // ends before the test stops waiting for the process
	lines chan string
}

func environment(world int, store string) []string {
	// Without the option the race detector delays the exit of each process by a second.
	return append(os.Environ(), "GORACE=atexit_sleep_ms=0",
		worldVar+"="+strconv.Itoa(world), storeVar+"=file://"+store)
}

func memberEnv(env []string, rank, restarts int) []string {
	return append(env[:len(env):len(env)], rankVar+"="+strconv.Itoa(rank), restartsVar+"="+strconv.Itoa(restarts))
}

// thisMember returns the Member that this process is, or nil if the environment does not name one, as
// in the process of the test.
func thisMember() *Member {
	if os.Getenv(rankVar) == "" {
		return nil
	}
	return &Member{
		Rank: intVar(rankVar), World: intVar(worldVar), Restarts: intVar(restartsVar), Store: os.Getenv(storeVar),
		lines: make(chan string, maxQueuedLines),
	}
}

// intVar returns an environment variable as a number. If it is not a number the process exits.
func intVar(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		fatal(err)
	}
	return n
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// run calls f and ends the process: with status 0 if f returned nil and leaked nothing, and otherwise
// with status 1 and the error on standard error.
func (m *Member) run(f func(*Member) error) {
	var cancel context.CancelFunc
	m.ctx, cancel = context.WithTimeout(context.Background(), Limit*3/4)
	go m.readLines()
	before := leakcheck.Begin()
	if err := recoverPanic(f, m); err != nil {
		fatal(err)
	}
	cancel()
	if leaks := before.Leaks(); len(leaks) > 0 {
		fatal(fmt.Errorf("leaked: %s", strings.Join(leaks, "\n")))
	}
	os.Exit(0)
}

// recoverPanic returns the error of f, or, if f panics, an error with the value and the stack of the
// panic.
func recoverPanic(f func(*Member) error, m *Member) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f(m)
}

// readLines queues the lines that the test sends, for ReadLine. When standard input ends, the test has
// exited, and readLines ends the process with status 1.
func (m *Member) readLines() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if line, err := strconv.Unquote(in.Text()); err == nil {
			m.lines <- line
		}
	}
	fatal(errors.New("the process of the test has exited"))
}

// Context returns a context that ends after three quarters of [Limit], before the test gives up on the
// process.
func (m *Member) Context() context.Context { return m.ctx }

// Name returns "worker" followed by the rank, the usual name of the worker that this process is.
func (m *Member) Name() string { return "worker" + strconv.Itoa(m.Rank) }

// Send sends a line to the test, which Group.ReadLine or Group.WaitFor receives there.
func (m *Member) Send(line string) { fmt.Println(strconv.Quote(line)) }

// ReadLine returns the next line that the test sends to this member. It blocks until there is one, and
// fails once Context has ended.
func (m *Member) ReadLine() (string, error) {
	select {
	case line := <-m.lines:
		return line, nil
	case <-m.ctx.Done():
		return "", fmt.Errorf("no line from the test: %w", m.ctx.Err())
	}
}

// WaitFor discards lines from the test until one equals want. It fails once Context has ended.
func (m *Member) WaitFor(want string) error {
	for {
		if line, err := m.ReadLine(); err != nil || line == want {
			return err
		}
	}
}
