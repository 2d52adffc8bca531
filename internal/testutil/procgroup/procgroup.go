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
// called first. A test, or a subtest, has one group, which its subtests can use: see Group.In.
//
// After [Limit] the test fails. Processes that still run when the test ends get SIGQUIT; if
// the test failed, its log contains their standard error with the stacks of their goroutines.
package procgroup

import (
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Limit bounds how long the processes of a group may run.
const Limit = 2 * time.Minute

// Group is the processes of one test. Its methods must be called on the goroutine of the test. They end
// the test, as FailNow does, if an operation fails or the time of Limit has passed.
type Group struct {
	t        testing.TB
	timer    *time.Timer
	expired  chan struct{} // closed after Limit
	env      []string
	attr     func(rank int) *syscall.SysProcAttr // or nil
	members  []*process
	restarts []int // by rank
}

// Start starts n processes with the ranks 0 to n-1, each of which calls run and exits, and returns
// the Group of them. Each process executes the test from its beginning and calls Start itself,
// which calls run there and does not return. A process fails if run returns an error or panics, or
// if it leaks goroutines, descriptors or mappings; WaitExit and Wait report that. Processes that
// still run at the end of the test are ended.
func Start(t testing.TB, n int, run func(m *Member) error) *Group {
	t.Helper()
	return StartWith(t, n, nil, run)
}

// StartWith is Start with attributes of the processes, by rank, if attr is not nil.
func StartWith(t testing.TB, n int, attr func(rank int) *syscall.SysProcAttr, run func(m *Member) error) *Group {
	t.Helper()
	if m := thisMember(); m != nil {
		m.run(run) // exits
	}
	g := &Group{
		t: t, expired: make(chan struct{}), attr: attr,
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

// In returns the same group for use by the subtest t, which ends when an operation fails.
func (g *Group) In(t testing.TB) *Group {
	sub := *g
	sub.t = t
	return &sub
}

func (g *Group) start(rank int) {
	g.t.Helper()
	var attr *syscall.SysProcAttr
	if g.attr != nil {
		attr = g.attr(rank)
	}
	p, err := startProcess(pattern(g.t.Name()), memberEnv(g.env, rank, g.restarts[rank]), attr)
	if err != nil {
		g.t.Fatalf("procgroup: member %d: %v", rank, err)
	}
	g.members[rank] = p
}

// pattern returns a regular expression for the option -test.run that matches only the test or
// subtest with that name, and its subtests.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// WaitFor reads and discards lines from the member with that rank until one equals want. The test
// fails, as with FailNow, if the member exits before or the time of Limit has passed.
func (g *Group) WaitFor(rank int, want string) {
	g.t.Helper()
	for g.ReadLine(rank) != want {
	}
}

// ReadLine returns the next line that the member with that rank has sent with Member.Send. It
// blocks until there is one. The test fails, as with FailNow, if the member exits without a further
// line or the time of Limit has passed.
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

// Send sends line to the member with that rank, where Member.ReadLine returns it. It does not wait
// for that. The test fails, as with FailNow, if the member has exited.
func (g *Group) Send(rank int, line string) {
	g.t.Helper()
	if err := g.members[rank].send(line); err != nil {
		g.fail(rank, "cannot be written to: "+err.Error())
	}
}

// SendAll sends line, as Send does, to each member that has not been killed with Kill.
func (g *Group) SendAll(line string) {
	g.t.Helper()
	for rank, p := range g.members {
		if !p.killed {
			g.Send(rank, line)
		}
	}
}

// Kill kills the member with that rank with SIGKILL and waits until it has exited. Wait does not
// fail the test for a member that was killed in this way.
func (g *Group) Kill(rank int) {
	g.t.Helper()
	g.members[rank].kill()
	g.waitExit(rank)
}

// Stop sends SIGSTOP to the member with that rank, which stops it until Continue. Stop may return
// before the member has stopped. The test fails, as with FailNow, if the member has exited.
func (g *Group) Stop(rank int) {
	g.t.Helper()
	if err := g.members[rank].stop(); err != nil {
		g.t.Fatalf("procgroup: member %d: %v", rank, err)
	}
}

// Continue sends SIGCONT to the member with that rank, which resumes it after Stop. The test fails,
// as with FailNow, if the member has exited.
func (g *Group) Continue(rank int) {
	g.t.Helper()
	if err := g.members[rank].resume(); err != nil {
		g.t.Fatalf("procgroup: member %d: %v", rank, err)
	}
}

// Restart waits until the member with that rank has exited, and starts another process with the
// same rank, whose Member.Restarts is greater by one. The exit status of the previous process is
// not checked.
func (g *Group) Restart(rank int) {
	g.t.Helper()
	g.waitExit(rank)
	g.restarts[rank]++
	g.start(rank)
}

// WaitExit blocks until the member with that rank has exited. It returns nil if the exit status is
// 0, and otherwise an error with the standard error of the process. The test fails, as with
// FailNow, if the time of Limit has passed before.
func (g *Group) WaitExit(rank int) error {
	g.t.Helper()
	g.waitExit(rank)
	return g.members[rank].ended
}

// Wait blocks until all members have exited. The test fails, as with FailNow, unless each member
// exited with status 0 or was killed by Kill, or if the time of Limit has passed before.
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

// clean ends the processes that still run: it sends each SIGQUIT, and kills it if it does not exit
// soon. If the test has failed, clean logs their standard error, which has the stacks of their
// goroutines. It is a cleanup of the test.
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
