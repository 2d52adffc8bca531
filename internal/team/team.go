// Package team runs a test in several real processes: the test binary starts
// itself again, once for each member, and the test has them live, stop and die.
//
//	func TestSomething(t *testing.T) {
//		crew := team.Start(t, 2, func(m *team.Member) error {
//			if m.Rank == 0 {
//				m.Say("ready")
//				return m.Await("go on")
//			}
//			...
//		})
//		crew.Await(0, "ready")
//		crew.Kill(1)
//		crew.Tell(0, "go on")
//		crew.Wait()
//	}
//
// What a test does before Start is done in each of its processes too, so Start comes
// first. A test, or subtest, has one crew.
//
// Nothing here waits for ever. When the time is over all processes get SIGQUIT, and
// what they said on standard error, the stacks of their goroutines included, is in
// the log of the test.
package team

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Limit is how long a crew may be at work.
const Limit = 60 * time.Second

// Crew is the processes of one test. Its methods are called on the goroutine of the
// test, which they end where something is not as it should be.
type Crew struct {
	t       testing.TB
	over    *time.Timer
	expired chan struct{} // closed when the time is over
	env     []string
	members []*process
	lives   []int
}

// Start starts n processes, each of which calls live and then ends: well if that
// returned no error and left nothing behind. In such a process Start does not return.
// Their ranks are 0 to n-1.
func Start(t testing.TB, n int, live func(m *Member) error) *Crew {
	t.Helper()
	if m := thisMember(); m != nil {
		m.live(live) // ends the process
	}
	c := &Crew{
		t: t, expired: make(chan struct{}),
		members: make([]*process, n), lives: make([]int, n),
		env: environment(n, filepath.Join(t.TempDir(), "store")),
	}
	c.over = time.AfterFunc(Limit, func() { close(c.expired) })
	t.Cleanup(c.clean)
	for rank := range n {
		c.start(rank)
	}
	return c
}

func (c *Crew) start(rank int) {
	c.t.Helper()
	p, err := startProcess(pattern(c.t.Name()), memberEnv(c.env, rank, c.lives[rank]))
	if err != nil {
		c.t.Fatalf("team: member %d: %v", rank, err)
	}
	c.members[rank] = p
}

// pattern is what -test.run needs to find the test of that name alone.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + quote(part) + "$"
	}
	return strings.Join(parts, "/")
}

// Await reads what a member says until it says word.
func (c *Crew) Await(rank int, word string) {
	c.t.Helper()
	for c.Line(rank) != word {
	}
}

// Line is the next that a member says.
func (c *Crew) Line(rank int) string {
	c.t.Helper()
	select {
	case line, ok := <-c.members[rank].lines:
		if !ok {
			c.fail(rank, "has ended and says nothing more")
		}
		return line
	case <-c.expired:
		c.fail(rank, "says nothing")
	}
	return ""
}

// Tell says a line to a member.
func (c *Crew) Tell(rank int, line string) {
	c.t.Helper()
	if err := c.members[rank].tell(line); err != nil {
		c.fail(rank, "does not listen: "+err.Error())
	}
}

// TellAll says a line to all members that live.
func (c *Crew) TellAll(line string) {
	c.t.Helper()
	for rank, p := range c.members {
		if !p.killed {
			c.Tell(rank, line)
		}
	}
}

// Kill ends a member as kill -9 does, and returns when it is dead.
func (c *Crew) Kill(rank int) {
	c.t.Helper()
	c.members[rank].kill()
	c.end(rank)
}

// Stop stops a member as Ctrl-Z does, and Continue has it go on.
func (c *Crew) Stop(rank int) {
	c.t.Helper()
	if err := c.members[rank].stop(); err != nil {
		c.t.Fatalf("team: member %d: %v", rank, err)
	}
}

// Continue has a stopped member go on.
func (c *Crew) Continue(rank int) {
	c.t.Helper()
	if err := c.members[rank].resume(); err != nil {
		c.t.Fatalf("team: member %d: %v", rank, err)
	}
}

// Restart starts another process for a member that has ended; its Member.Life is one
// more.
func (c *Crew) Restart(rank int) {
	c.t.Helper()
	c.end(rank)
	c.lives[rank]++
	c.start(rank)
}

// End waits for a member to end, and returns how: nil, or an error with what it said on
// standard error.
func (c *Crew) End(rank int) error {
	c.t.Helper()
	c.end(rank)
	return c.members[rank].ended
}

// Wait waits until all have ended. Those that were not killed must have ended well.
func (c *Crew) Wait() {
	c.t.Helper()
	for rank, p := range c.members {
		if err := c.End(rank); err != nil && !p.killed {
			c.t.Errorf("team: member %d: %v", rank, err)
		}
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

func (c *Crew) end(rank int) {
	c.t.Helper()
	select {
	case <-c.members[rank].done:
	case <-c.expired:
		c.fail(rank, "does not end")
	}
}

func (c *Crew) fail(rank int, what string) {
	c.t.Helper()
	c.t.Fatalf("team: member %d %s", rank, what)
}

// clean leaves no process, and tells what they said where the test failed.
func (c *Crew) clean() {
	c.over.Stop()
	late := map[int]*process{}
	for rank, p := range c.members {
		if p != nil && !p.hasEnded() {
			late[rank] = p
			p.askWhy()
		}
	}
	for rank, p := range late {
		p.finish()
		if c.t.Failed() {
			c.t.Logf("team: member %d: %v", rank, p.ended)
		}
	}
}
