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
	kept  []string // see Keep
}

func environment(world int, store string) []string {
	// Without the option the race detector delays the exit of each process by a second.
	return append(os.Environ(), "GORACE=atexit_sleep_ms=0",
		worldVar+"="+strconv.Itoa(world), storeVar+"=file://"+store)
}

func memberEnv(env []string, rank, restarts int) []string {
	return append(env[:len(env):len(env)], rankVar+"="+strconv.Itoa(rank), restartsVar+"="+strconv.Itoa(restarts))
}

// thisMember returns a Member with the data that the test has passed to this process in its
// environment. It returns nil if the environment names no member, as in the process of the test. If
// a number there is malformed, the process exits with status 1.
func thisMember() *Member {
	if os.Getenv(rankVar) == "" {
		return nil
	}
	return &Member{
		Rank: intVar(rankVar), World: intVar(worldVar), Restarts: intVar(restartsVar), Store: os.Getenv(storeVar),
		lines: make(chan string, maxQueuedLines),
	}
}

// intVar returns the value of the environment variable name as a number. If it is no number, intVar
// prints the error and exits the process with status 1.
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

// run calls f and then exits the process. The status is 0 if f returned nil and no goroutines,
// descriptors or mappings leaked. Otherwise it is 1, and the error of f, its panic or the leaks are
// printed to standard error.
func (m *Member) run(f func(*Member) error) {
	var cancel context.CancelFunc
	m.ctx, cancel = context.WithTimeout(context.Background(), Limit*3/4)
	go m.readLines()
	before := leakcheck.Begin()
	if err := recoverPanic(f, m); err != nil {
		fatal(err)
	}
	cancel()
	if leaks := before.Leaks(m.kept...); len(leaks) > 0 {
		fatal(fmt.Errorf("leaked: %s", strings.Join(leaks, "\n")))
	}
	os.Exit(0)
}

// recoverPanic calls f with m and returns its error. If f panics it returns an error with the value
// and the stack of the panic.
func recoverPanic(f func(*Member) error, m *Member) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f(m)
}

// readLines reads the lines that the test sends from standard input, and queues them for ReadLine.
// When standard input ends, which means that the process of the test has exited, it exits this
// process with status 1. It never returns.
func (m *Member) readLines() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if line, err := strconv.Unquote(in.Text()); err == nil {
			m.lines <- line
		}
	}
	fatal(errors.New("the process of the test has exited"))
}

// Context returns a context that ends when three quarters of [Limit] have passed since the member
// began, before the test fails because of Limit.
func (m *Member) Context() context.Context { return m.ctx }

// Keep declares that this process keeps files whose names begin with prefix open or mapped until it exits,
// which are no leaks then.
func (m *Member) Keep(prefix string) { m.kept = append(m.kept, prefix) }

// Name returns "worker" followed by the rank, the usual name of the worker that this process is.
func (m *Member) Name() string { return "worker" + strconv.Itoa(m.Rank) }

// Send sends line to the test, where Group.ReadLine returns it. It may block if the test does not
// read the lines of this member.
func (m *Member) Send(line string) { fmt.Println(strconv.Quote(line)) }

// ReadLine returns the next line that the test has sent to this member with Group.Send. It blocks
// until there is one. If Context ends first it returns an error that matches
// context.DeadlineExceeded.
func (m *Member) ReadLine() (string, error) {
	select {
	case line := <-m.lines:
		return line, nil
	case <-m.ctx.Done():
		return "", fmt.Errorf("no line from the test: %w", m.ctx.Err())
	}
}

// WaitFor reads and discards lines from the test until one equals want, and returns nil. If Context
// ends first it returns the error of ReadLine.
func (m *Member) WaitFor(want string) error {
	for {
		if line, err := m.ReadLine(); err != nil || line == want {
			return err
		}
	}
}
