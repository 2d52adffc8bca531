// Package cudagroup runs parity cases on groups of workers, each a process of its own with the devices
// of a simulated CUDA driver.
//
//	func TestParityCuda(t *testing.T) {
//		cudagroup.Run(t, 4, cudagroup.Case{ID: "rpc/X.test_add", Run: func(w *cudagroup.Worker) {
//			w.Live(serve, func(a *agent.Agent) {
//				x := w.Full(1, cudagroup.GPU(0), 2)
//				...
//				w.RequireFull(sum, 2, cudagroup.GPU(0), 2)
//			})
//		}})
//	}
//
// All cases of a group use the same processes, one after the other; each case has agents of its own.
// Every copy and kernel of the simulated devices takes a moment, so that work which does not wait for it
// reads wrong bytes.
package cudagroup

import (
	"fmt"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
)

// Case is a parity case. All processes of the group call Run concurrently; it fails the case by a panic,
// as functions of package require do with the Worker.
type Case struct {
	ID  string
	Run func(w *Worker)
}

// The lines between the test and the processes, apart from IDs of cases and texts of errors.
const (
	end       = "" // no further case
	passed    = "passed"
	barrier   = "barrier"   // this process waits for the others
	proceed   = "proceed"   // all processes wait
	abandoned = "abandoned" // another process does not reach the barrier
)

// Run starts n processes and runs each case in them as a subtest of t. It must be the first call of the
// test. It skips t, with the reason, where the driver cannot be simulated.
func Run(t *testing.T, n int, cases ...Case) {
	lib := cusim.Library(t)
	group := procgroup.Start(t, n, func(m *procgroup.Member) error { return serve(m, lib, cases) })
	for _, c := range cases {
		parity.Case(t, c.ID, func(t *testing.T) { run(t, group.In(t), n, c.ID) })
	}
	group.SendAll(end)
	group.Wait()
}

// run runs the case with that ID in all processes, and fails t for each one that fails.
func run(t *testing.T, group *procgroup.Group, n int, id string) {
	group.SendAll(id)
	ended := make([]bool, n)
	for slices.Contains(ended, false) {
		var waiting []int
		for rank := range n {
			if ended[rank] {
				continue
			}
			switch line := group.ReadLine(rank); line {
			case barrier:
				waiting = append(waiting, rank)
			case passed:
				ended[rank] = true
			default:
				ended[rank] = true
				t.Errorf("worker%d: %s", rank, line)
			}
		}
		answer := proceed
		if len(waiting) < n {
			answer = abandoned
		}
		for _, rank := range waiting {
			group.Send(rank, answer)
		}
	}
}

// serve runs the cases that the test names, in a process of the group, until it ends them.
func serve(m *procgroup.Member, lib string, cases []Case) error {
	w, err := newWorker(m, lib)
	if err != nil {
		return err
	}
	for {
		id, err := m.ReadLine()
		if err != nil {
			return err
		}
		if id == end {
			return w.close()
		}
		i := slices.IndexFunc(cases, func(c Case) bool { return c.ID == id })
		m.Send(w.outcome(cases[i]))
	}
}

// outcome runs a case and returns passed, or the text of its panic.
func (w *Worker) outcome(c Case) (line string) {
	w.begin(c.ID)
	defer w.closeAgents()
	defer func() {
		if v := recover(); v != nil {
			line = fmt.Sprintf("%v\n%s", v, debug.Stack())
		}
	}()
	c.Run(w)
	return passed
}
