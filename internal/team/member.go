package team

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// These in the environment of a process make it a member.
const (
	rankVar  = "TEAM_TEST_RANK"
	worldVar = "TEAM_TEST_WORLD"
	lifeVar  = "TEAM_TEST_LIFE"
	storeVar = "TEAM_TEST_STORE"
)

// Member is one process of a crew, as it sees itself.
type Member struct {
	Rank, World int
	Life        int    // how many lives it had before, see Crew.Restart
	Store       string // a file:// URL that all share

	ctx   context.Context // ends when the test has given up
	heard chan string
}

func environment(world int, store string) []string {
	// The race detector ends a process at once, and not after a second.
	return append(os.Environ(), "GORACE=atexit_sleep_ms=0",
		worldVar+"="+strconv.Itoa(world), storeVar+"=file://"+store)
}

func memberEnv(env []string, rank, life int) []string {
	return append(env[:len(env):len(env)], rankVar+"="+strconv.Itoa(rank), lifeVar+"="+strconv.Itoa(life))
}

// thisMember is what this process is, nil if it is no member.
func thisMember() *Member {
	if os.Getenv(rankVar) == "" {
		return nil
	}
	return &Member{
		Rank: number(rankVar), World: number(worldVar), Life: number(lifeVar), Store: os.Getenv(storeVar),
		heard: make(chan string, backlog),
	}
}

// number is what the starter wrote.
func number(name string) int {
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

// live is all that this process does.
func (m *Member) live(f func(*Member) error) {
	var cancel context.CancelFunc
	m.ctx, cancel = context.WithTimeout(context.Background(), Limit*3/4)
	go m.listen()
	before := leakcheck.Begin()
	if err := guarded(f, m); err != nil {
		fatal(err)
	}
	cancel()
	if leaks := before.Leaks(); len(leaks) > 0 {
		fatal(fmt.Errorf("left behind: %s", strings.Join(leaks, "\n")))
	}
	os.Exit(0)
}

// guarded makes an error of a panic: testing would not let it be one.
func guarded(f func(*Member) error, m *Member) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f(m)
}

// listen takes in what the test says. When the test has died nobody needs this
// process.
func (m *Member) listen() {
	from := bufio.NewScanner(os.Stdin)
	for from.Scan() {
		if line, err := strconv.Unquote(from.Text()); err == nil {
			m.heard <- line
		}
	}
	fatal(fmt.Errorf("the test is gone: %w", io.EOF))
}

// Context ends some time before the test gives up.
func (m *Member) Context() context.Context { return m.ctx }

// Name is worker and the rank.
func (m *Member) Name() string { return "worker" + strconv.Itoa(m.Rank) }

// Say says a line to the test.
func (m *Member) Say(line string) { fmt.Println(strconv.Quote(line)) }

// Line is the next that the test says.
func (m *Member) Line() (string, error) {
	select {
	case line := <-m.heard:
		return line, nil
	case <-m.ctx.Done():
		return "", fmt.Errorf("the test says nothing: %w", m.ctx.Err())
	}
}

// Await reads what the test says until it says word.
func (m *Member) Await(word string) error {
	for {
		if line, err := m.Line(); err != nil || line == word {
			return err
		}
	}
}
