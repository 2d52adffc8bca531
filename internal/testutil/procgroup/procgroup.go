// Package procgroup runs a test in several real processes. The test binary starts itself
// once for each member of the group; the test exchanges lines of text with the members,
// kills, stops and restarts them.
//
//	func TestSomething(t *testing.T) {
//		group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
//			if m.Rank == 0 {
//				m.Send("ready")
//				return m.WaitFor("go on")
//			}
//			...
//		})
//		group.WaitFor(0, "ready")
//		group.Kill(1)
//		group.Send(0, "go on")
//		group.Wait()
//	}
//
// Each member runs the test function from its beginning up to Start, so Start should be
// called first. A test, or a subtest, has one group.
//
// After [Limit] the test fails. Processes that still run when the test ends get SIGQUIT; if
// the test failed, its log contains their standard error with the stacks of their goroutines.
package procgroup

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Limit bounds how long the processes of a group may run.
const Limit = 60 * time.Second

// Group is the processes of one test. Its methods must be called on the goroutine of the test. They end
// the test, as FailNow does, if an operation fails or the time of Limit has passed.
type Group struct {
	t        testing.TB
	timer    *time.Timer
	expired  chan struct{} // closed after Limit
	env      []string
	members  []*process
	restarts []int // by rank
}

// Start starts n processes with the ranks 0 to n-1, each of which calls run and exits, and returns
// them. A process fails if run returns an error or panics, or if it leaks goroutines, descriptors or
// mappings. Start must be called by the test in the same way in each of these processes, where it does
// not return.
func Start(t testing.TB, n int, run func(m *Member) error) *Group {
	t.Helper()
	if m := thisMember(); m != nil {
		m.run(run) // exits
	}
	g := &Group{
		t: t, expired: make(chan struct{}),
		members: make([]*process, n), restarts: make([]int, n),
		env: environment(n, filepath.Join(t.TempDir(), "store")),
	}
	g.timer = time.AfterFunc(Limit, func() { close(g.expired) })
	t.Cleanup(g.clean)
	for rank := range n {
		g.start(rank)
	}
	return g
}

func (g *Group) start(rank int) {
	g.t.Helper()
	p, err := startProcess(pattern(g.t.Name()), memberEnv(g.env, rank, g.restarts[rank]))
	if err != nil {
		g.t.Fatalf("procgroup: member %d: %v", rank, err)
	}
	g.members[rank] = p
}

// pattern returns the -test.run pattern that matches only the test or subtest with that name.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// WaitFor discards lines from the member of that rank until one equals want. The test fails if the
// member exits before.
func (g *Group) WaitFor(rank int, want string) {
	g.t.Helper()
	for g.ReadLine(rank) != want {
	}
}

// ReadLine returns the next line that the member of that rank sends, and blocks until there is one. The
// test fails if the member exits without a further line.
func (g *Group) ReadLine(rank int) string {
	g.t.Helper()
	select {
	case line, ok := <-g.members[rank].lines:
		if !ok {
			g.fail(rank, "has exited without a further line")
		}
		return line
	case <-g.expired:
		g.fail(rank, "sends no line")
	}
	return ""
}

// Send sends a line to the member of that rank. It does not wait until the member reads it.
func (g *Group) Send(rank int, line string) {
	g.t.Helper()
	if err := g.members[rank].send(line); err != nil {
		g.fail(rank, "cannot be written to: "+err.Error())
	}
}

// SendAll sends a line to every member except those that Kill has killed.
func (g *Group) SendAll(line string) {
	g.t.Helper()
	for rank, p := range g.members {
		if !p.killed {
			g.Send(rank, line)
		}
	}
}

// Kill kills the member of that rank with SIGKILL and returns after it has exited.
func (g *Group) Kill(rank int) {
	g.t.Helper()
	g.members[rank].kill()
	g.waitExit(rank)
}

// Stop stops the member of that rank with SIGSTOP, until Continue. It may return before the member has
// stopped.
func (g *Group) Stop(rank int) {
	g.t.Helper()
	if err := g.members[rank].stop(); err != nil {
		g.t.Fatalf("procgroup: member %d: %v", rank, err)
	}
}

// Continue resumes a member that Stop has stopped.
func (g *Group) Continue(rank int) {
	g.t.Helper()
	if err := g.members[rank].resume(); err != nil {
		g.t.Fatalf("procgroup: member %d: %v", rank, err)
	}
}

// Restart waits until the member of that rank has exited and starts another process with the rank,
// whose Member.Restarts is one more.
func (g *Group) Restart(rank int) {
	g.t.Helper()
	g.waitExit(rank)
	g.restarts[rank]++
	g.start(rank)
}

// WaitExit blocks until the member of that rank has exited. It returns nil for exit status 0, and
// otherwise an error with the standard error output of the process.
func (g *Group) WaitExit(rank int) error {
	g.t.Helper()
	g.waitExit(rank)
	return g.members[rank].ended
}

// Wait blocks until all members have exited. The test fails unless each member exited with status 0 or
// was killed by Kill.
func (g *Group) Wait() {
	g.t.Helper()
	for rank, p := range g.members {
		if err := g.WaitExit(rank); err != nil && !p.killed {
			g.t.Errorf("procgroup: member %d: %v", rank, err)
		}
	}
	if g.t.Failed() {
		g.t.FailNow()
	}
}

func (g *Group) waitExit(rank int) {
	g.t.Helper()
	select {
	case <-g.members[rank].done:
	case <-g.expired:
		g.fail(rank, "does not exit")
	}
}

func (g *Group) fail(rank int, problem string) {
	g.t.Helper()
	g.t.Fatalf("procgroup: member %d %s", rank, problem)
}

// clean ends all processes that still run, and logs their standard error with the stacks if the test
// failed. It is a cleanup of the test.
func (g *Group) clean() {
	g.timer.Stop()
	running := map[int]*process{}
	for rank, p := range g.members {
		if p != nil && !p.exited() {
			running[rank] = p
			p.requestStacks()
		}
	}
	for rank, p := range running {
		p.finish()
		if g.t.Failed() {
			g.t.Logf("procgroup: member %d: %v", rank, p.ended)
		}
	}
}
