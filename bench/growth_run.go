package bench

import (
	"context"
	"fmt"
	"time"
)

// processUsage is the resources that a process uses at one moment, as the system reports them to
// another process.
type processUsage struct {
	Resident        int // bytes, with those that are shared
	Shared          int // bytes of these that are shared memory
	Descriptors     int
	DescriptorLimit int // 0: none
	Threads         int
	CPU             time.Duration
}

// growthRun is a measurement of a GrowthSpec.
type growthRun struct {
	spec      GrowthSpec
	processes []*process // the hub, then the others
	urls      []string   // of the others
	result    *Growth
}

// hubRequest is a line that the hub reads. The hub opens pipes to URL, each of which then makes a
// round trip; or makes round trips, up to Trips or as long as Micros takes, on its first pipe or on
// all in turn; or releases memory that it does not need. It answers with Samples.
type hubRequest struct {
	Verb   string // open, one, turn or trim
	URL    string // "-": none
	Count  int    // pipes or round trips
	Micros int64  // for round trips
}

// String returns the line for r, which the C++ program reads as well.
func (r hubRequest) String() string {
	return fmt.Sprint(r.Verb, " ", r.URL, " ", r.Count, " ", r.Micros)
}

const (
	hubOpen = "open"
	hubOne  = "one"
	hubTurn = "turn"
	hubTrim = "trim"
)

// start starts all processes, the hub first.
func (m *growthRun) start(ctx context.Context, start starter) error {
	run := func(role string, answer any) error {
		p, err := start(ctx, role, answer)
		if p != nil {
			m.processes = append(m.processes, p)
		}
		return err
	}
	if err := run(roleHub, &struct{}{}); err != nil {
		return err
	}
	for range m.spec.Processes - 1 {
		var info serverInfo
		if err := run(roleEcho, &info); err != nil {
			return err
		}
		if len(info.URLs) == 0 {
			return fmt.Errorf("%w: no address", ErrProtocol)
		}
		m.urls = append(m.urls, info.URLs[0])
	}
	return nil
}

// measure opens the pipes and fills m.result. The error is that of a process, of reading its usage,
// or the cause of ctx.
func (m *growthRun) measure(ctx context.Context) error {
	before, err := m.hubUsage()
	if err != nil {
		return err
	}
	if err := m.open(); err != nil {
		return err
	}
	open, err := m.hubUsage()
	if err != nil {
		return err
	}
	r := m.result
	each := func(later, earlier int) float64 { return float64(later-earlier) / float64(r.Pipes) }
	r.BytesPerPipe = each(open.Resident, before.Resident)
	r.SharedPerPipe = each(open.Shared, before.Shared)
	r.DescriptorsPerPipe = each(open.Descriptors, before.Descriptors)
	r.Threads = float64(open.Threads - before.Threads)
	idle, err := m.cpu(func() error { return wait(ctx, m.spec.Idle) })
	if err != nil {
		return err
	}
	r.IdleCore = idle.Seconds() / m.spec.Idle.Seconds()
	if err := m.trips(hubOne, &r.One); err != nil {
		return err
	}
	return m.trips(hubTurn, &r.InTurn)
}

// hubUsage has the hub release memory that it does not need, and returns its usage.
func (m *growthRun) hubUsage() (processUsage, error) {
	if _, err := m.request(hubRequest{Verb: hubTrim}); err != nil {
		return processUsage{}, err
	}
	return usageOf(m.processes[0].cmd.Process.Pid)
}

// probePipes is the number of pipes from which the hub's need of descriptors is determined.
const probePipes = 2

// open opens all pipes of the hub. If more than probePipes go to one process, it opens these first,
// and returns an error that matches ErrPath if the limit of descriptors does not suffice for the others.
func (m *growthRun) open() error {
	opened := 0
	if m.spec.Pipes > probePipes {
		var used [probePipes]processUsage
		for i := range used {
			if _, err := m.request(hubRequest{Verb: hubOpen, URL: m.urls[0], Count: 1}); err != nil {
				return err
			}
			var err error
			if used[i], err = m.hubUsage(); err != nil {
				return err
			}
		}
		opened = probePipes
		last := used[probePipes-1]
		each := last.Descriptors - used[0].Descriptors
		need := last.Descriptors + each*(m.result.Pipes-opened)
		if last.DescriptorLimit > 0 && need > last.DescriptorLimit {
			return &PathError{m.spec.String(), fmt.Errorf(
				"about %d file descriptors are needed, %d for each pipe, and the limit of a process is %d", need, each, last.DescriptorLimit)}
		}
	}
	for _, url := range m.urls {
		if _, err := m.request(hubRequest{Verb: hubOpen, URL: url, Count: m.spec.Pipes - opened}); err != nil {
			return err
		}
		opened = 0
	}
	return nil
}

// trips makes the round trips of one kind after a tenth of them as a warm-up, and stores the result
// in to.
func (m *growthRun) trips(verb string, to *Trips) error {
	r := hubRequest{Verb: verb, Count: m.spec.Trips, Micros: max(m.spec.TripTime.Microseconds(), 1)}
	warm := r
	warm.Count, warm.Micros = warm.Count/10+1, warm.Micros/10+1
	if _, err := m.request(warm); err != nil {
		return err
	}
	var samples Samples
	used, err := m.cpu(func() (err error) { samples, err = m.request(r); return })
	if err != nil {
		return err
	}
	p := percentiles(samples.RoundTrips)
	if p == nil || len(samples.RoundTrips) > r.Count {
		return fmt.Errorf("%w: %d round trips, at most %d were requested", ErrProtocol, len(samples.RoundTrips), r.Count)
	}
	n := len(samples.RoundTrips)
	*to = Trips{Count: n, P50: p.P50, P99: p.P99, CPU: used.Seconds() * 1e6 / float64(n)}
	return nil
}

// request sends r to the hub and returns its answer.
func (m *growthRun) request(r hubRequest) (samples Samples, err error) {
	if r.URL == "" {
		r.URL = "-"
	}
	return samples, m.processes[0].request(r.String(), &samples)
}

// cpu returns the CPU time of all processes while work runs.
func (m *growthRun) cpu(work func() error) (time.Duration, error) {
	var times [2]time.Duration
	for i, step := range []func() error{nil, work} {
		if step != nil {
			if err := step(); err != nil {
				return 0, err
			}
		}
		for _, p := range m.processes {
			u, err := usageOf(p.cmd.Process.Pid)
			if err != nil {
				return 0, err
			}
			times[i] += u.CPU
		}
	}
	return times[1] - times[0], nil
}
