package dist

import (
	"fmt"
	"maps"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// passReport is the number of send nodes that wait, or by how much it has changed, on some workers.
type passReport struct {
	_       struct{} `tensorpipe:"dist.report"`
	Changes []passChange
}

type passChange struct {
	_           struct{} `tensorpipe:"dist.change"`
	Worker      string
	Incarnation agent.Incarnation
	Waiting     int
	Absolute    bool // Waiting is the number, and not the change since the last report
}

// waits is the number of send nodes that wait for gradients, or by how much it has changed, by worker.
type waits map[agent.Incarnation]*waitingWorker

type waitingWorker struct {
	name     string
	n        int
	absolute bool // n is the number, see passChange
}

// Bounds of reports, which other workers send.
const (
	maxWaiting = 1 << 30 // the change in one report
	maxWorkers = 1 << 16 // workers with send nodes that wait
)

// add adds a report. The error matches agent.ErrProtocol.
func (w *waits) add(report passReport) error {
	for _, c := range report.Changes {
		if c.Waiting < -maxWaiting || c.Waiting > maxWaiting || len(*w) >= maxWorkers {
			return fmt.Errorf("%w: a report of %d waiting messages on %q, one of %d workers", agent.ErrProtocol, c.Waiting, c.Worker, len(*w))
		}
		w.change(c)
	}
	return nil
}

func (w *waits) change(c passChange) {
	worker := (*w)[c.Incarnation]
	if worker == nil {
		worker = &waitingWorker{name: c.Worker}
		put((*map[agent.Incarnation]*waitingWorker)(w), c.Incarnation, worker)
	}
	if c.Absolute {
		worker.n, worker.absolute = c.Waiting, true
	} else {
		worker.n += c.Waiting
	}
}

// report returns the changes as a report.
func (w waits) report() (report passReport) {
	for incarnation, worker := range w {
		if worker.n != 0 || worker.absolute {
			report.Changes = append(report.Changes, passChange{Worker: worker.name, Incarnation: incarnation, Waiting: worker.n, Absolute: worker.absolute})
		}
	}
	return report
}

// sum returns the number of send nodes that wait on all workers, if w has all reports. The error matches
// agent.ErrProtocol if it is negative on one.
func (w waits) sum() (n int, err error) {
	for _, worker := range w {
		if worker.n < 0 {
			return 0, fmt.Errorf("%w: %d waiting messages on %q", agent.ErrProtocol, worker.n, worker.name)
		}
		n += worker.n
	}
	return n, nil
}

// clone returns a copy of w.
func (w waits) clone() waits {
	c := waits{}
	for incarnation, worker := range w {
		c[incarnation] = &waitingWorker{worker.name, worker.n, worker.absolute}
	}
	return c
}

// equal reports whether v has the same workers and numbers.
func (w waits) equal(v waits) bool {
	return maps.EqualFunc(w, v, func(a, b *waitingWorker) bool { return a.n == b.n })
}
