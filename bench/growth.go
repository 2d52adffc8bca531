package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// GrowthSpec describes a measurement of what many pipes cost: one process, the hub, has pipes to each
// of the others, which send every message back.
type GrowthSpec struct {
	Transport string        // uv or shm
	Processes int           // with the hub, 2 or more
	Pipes     int           // from the hub to each other process
	Trips     int           // round trips of each kind, at most
	TripTime  time.Duration // for the round trips of a kind; it ends them early
	Idle      time.Duration // for which the idle processes are observed
	Deadline  time.Duration // for the whole measurement
}

const (
	maxProcesses   = 1024
	maxGrowthPipes = 1_000_000
)

// Check returns an error that matches ErrSpec if s is invalid, and nil otherwise.
func (s GrowthSpec) Check() error {
	switch {
	case s.Transport != tcpTransport && s.Transport != shm.Name:
		return specErrorf("transport %q: the growth is measured over %s and %s", s.Transport, tcpTransport, shm.Name)
	case s.Processes < 2 || s.Processes > maxProcesses:
		return specErrorf("%d processes: want 2 to %d", s.Processes, maxProcesses)
	case s.Pipes < 1 || s.Pipes > maxGrowthPipes:
		return specErrorf("%d pipes: want 1 to %d", s.Pipes, maxGrowthPipes)
	case s.Trips < 1 || s.Trips > maxMessages:
		return specErrorf("%d round trips: want 1 to %d", s.Trips, maxMessages)
	case s.TripTime <= 0 || s.Idle <= 0 || s.Deadline <= 0:
		return specErrorf("all times must be more than 0")
	}
	return nil
}

// spec returns the Spec of the pipes of s, with tensors of 8 bytes and named targets.
func (s GrowthSpec) spec() Spec {
	return Spec{
		Transports: []string{s.Transport}, Channels: []string{basic.Name}, Dialect: pipe.DialectNative,
		Size: 8, Named: true,
	}
}

// Growth is the result of a GrowthSpec for one library. Bytes, descriptors and threads are those of
// the hub, less those of the same process before its first pipe.
type Growth struct {
	Subject            string  `json:"subject"`
	Transport          string  `json:"transport"`
	Processes          int     `json:"processes"`
	Pipes              int     `json:"pipes"`          // of the hub
	BytesPerPipe       float64 `json:"bytes_per_pipe"` // resident, with those that are shared
	SharedPerPipe      float64 `json:"shared_bytes_per_pipe"`
	DescriptorsPerPipe float64 `json:"descriptors_per_pipe"`
	Threads            float64 `json:"threads"`
	IdleCore           float64 `json:"idle_core"` // CPU time of all processes, as a fraction of one core

	One    Trips `json:"one"`     // on one pipe, while the others are open
	InTurn Trips `json:"in_turn"` // each on the next pipe
}

// Trips is the result of round trips of one kind. The times are in microseconds.
type Trips struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	CPU   float64 `json:"cpu_us"` // of all processes, for each round trip
}

// GrowthFigures returns the figures of a Growth, in the order of its fields.
func GrowthFigures() []GrowthFigure {
	return []GrowthFigure{
		{"bytes", "resident bytes for each pipe", GrowthBytes, func(g *Growth) float64 { return g.BytesPerPipe }},
		{"shared", "shared memory of these", GrowthBytes, func(g *Growth) float64 { return g.SharedPerPipe }},
		{"fds", "descriptors for each pipe", GrowthCount, func(g *Growth) float64 { return g.DescriptorsPerPipe }},
		{"threads", "threads added by all pipes", GrowthCount, func(g *Growth) float64 { return g.Threads }},
		{"idle", "idle: CPU time of all processes, of one core", GrowthShare, func(g *Growth) float64 { return g.IdleCore }},
		{"p50", "round trip on one pipe, median", GrowthMicros, func(g *Growth) float64 { return g.One.P50 }},
		{"p99", "round trip on one pipe, p99", GrowthMicros, func(g *Growth) float64 { return g.One.P99 }},
		{"CPU", "CPU time of a round trip on one pipe", GrowthMicros, func(g *Growth) float64 { return g.One.CPU }},
		{"turn p50", "round trip on all pipes in turn, median", GrowthMicros, func(g *Growth) float64 { return g.InTurn.P50 }},
		{"turn p99", "round trip on all pipes in turn, p99", GrowthMicros, func(g *Growth) float64 { return g.InTurn.P99 }},
		{"turn CPU", "CPU time of a round trip in turn", GrowthMicros, func(g *Growth) float64 { return g.InTurn.CPU }},
	}
}

// GrowthFigure is one number of a Growth.
type GrowthFigure struct {
	Name  string // short, for the head of a column
	Title string
	Unit  GrowthUnit
	Of    func(*Growth) float64
}

// GrowthUnit is the unit of a GrowthFigure.
type GrowthUnit int

// The units of figures.
const (
	GrowthCount  GrowthUnit = iota
	GrowthBytes             // bytes
	GrowthShare             // a fraction of one core
	GrowthMicros            // microseconds
)

// Median returns the median of f over results, or 0 if there are none.
func (f GrowthFigure) Median(results []*Growth) float64 {
	var all []float64
	for _, g := range results {
		all = append(all, f.Of(g))
	}
	return median(all)
}

// Ratio returns the median, over the runs of c, of the figure of A divided by that of B. It leaves out
// runs in which one of the two is not positive, and returns 0 if none remains.
func (f GrowthFigure) Ratio(c *GrowthComparison) float64 {
	var ratios []float64
	for i := range min(len(c.A), len(c.B)) {
		if a, b := f.Of(c.A[i]), f.Of(c.B[i]); a > 0 && b > 0 {
			ratios = append(ratios, a/b)
		}
	}
	return median(ratios)
}

// Grower is a library whose pipes can be measured as their number grows.
type Grower interface {
	Name() string

	// Grow starts the processes of s, measures, and stops them. The error matches ErrPath if the
	// library or the machine cannot do what s describes.
	Grow(ctx context.Context, s GrowthSpec) (*Growth, error)
}

// GrowthComparison has the results of one GrowthSpec for two libraries, in the order of the runs, and
// the reason why one of them has none.
type GrowthComparison struct {
	A, B       []*Growth
	WhyA, WhyB error
}

// CompareGrowth measures s with a and b alternately, as many times as runs, and the first of a
// run is a and b in turn. b may be nil. A library that cannot do it, with an error that matches
// ErrPath, is not measured again; its results are dropped and the reason is in the comparison. Any
// other error ends the comparison, which is nil then.
func CompareGrowth(ctx context.Context, a, b Grower, s GrowthSpec, runs int) (*GrowthComparison, error) {
	c := &GrowthComparison{}
	for i := range runs {
		sides := []func() error{func() error { return grow(ctx, a, s, &c.A, &c.WhyA) }}
		if b != nil {
			sides = append(sides, func() error { return grow(ctx, b, s, &c.B, &c.WhyB) })
		}
		if i%2 == 1 {
			slices.Reverse(sides)
		}
		for _, measure := range sides {
			if err := measure(); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// grow measures s with g and appends the result to results, unless why has a reason. It stores an
// error that matches ErrPath in why, and returns any other one.
func grow(ctx context.Context, g Grower, s GrowthSpec, results *[]*Growth, why *error) error {
	if *why != nil {
		return nil
	}
	r, err := g.Grow(ctx, s)
	switch {
	case err == nil:
		*results = append(*results, r)
	case errors.Is(err, ErrPath):
		*results, *why = nil, err
	default:
		return fmt.Errorf("%s: %w", g.Name(), err)
	}
	return nil
}

// Grow measures this library, in child processes. The error matches ErrSpec, ErrPath, ErrCorrupt or
// ErrProtocol, is a *ProcessError, that of starting a process, or the cause of ctx.
func (g Go) Grow(ctx context.Context, s GrowthSpec) (*Growth, error) {
	start := func(ctx context.Context, role string, answer any) (*process, error) {
		p, err := startProcess(ctx, "bench "+role, g.Child)
		if err != nil {
			return nil, err
		}
		return p, p.request(job{Role: role, Spec: s.spec()}, answer)
	}
	return measureGrowth(ctx, g.Name(), s, start)
}

// Grow measures the C++ library, in child processes. A process that ends early is a reason why s
// cannot be measured, unless bytes differed. The error matches ErrSpec, ErrPath, ErrCorrupt or
// ErrProtocol, is that of Build or of starting a process, or the cause of ctx.
func (l Libtensorpipe) Grow(ctx context.Context, s GrowthSpec) (*Growth, error) {
	path, err := buildPeer()
	if err != nil {
		return nil, err
	}
	start := func(ctx context.Context, role string, answer any) (*process, error) {
		args := []string{role, "--transport", s.Transport, "--channel", basic.Name}
		if role == roleEcho {
			args = append(args, "--listen", anyAddress(s.Transport))
		}
		p, err := startProcess(ctx, "tpbench "+role, Program{Path: path, Args: args})
		if err != nil {
			return nil, err
		}
		return p, p.decode(answer)
	}
	result, err := measureGrowth(ctx, l.Name(), s, start)
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case exited && exit.ExitCode() == exitCorrupt:
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	case exited && context.Cause(ctx) == nil && !errors.Is(err, ErrPath):
		err = &PathError{s.String(), err}
	}
	return result, err
}

// exitCorrupt is the exit status of the C++ hub if an echo differs from the message.
const exitCorrupt = 4

// String returns the processes and pipes of s, as in "1000 pipes over uv to 1 other process".
func (s GrowthSpec) String() string {
	pipes, others := "pipe", "process"
	if s.Pipes > 1 {
		pipes = "pipes"
	}
	if s.Processes > 2 {
		others = "processes"
	}
	return fmt.Sprintf("%d %s over %s to %d other %s", s.Pipes, pipes, s.Transport, s.Processes-1, others)
}

// starter starts a process with a role, roleEcho or roleHub, and decodes its first line into answer.
// A process that is not nil must be ended, also after an error.
type starter func(ctx context.Context, role string, answer any) (*process, error)

// measureGrowth measures the library name, whose processes start starts. All have ended when it
// returns. The error matches ErrPath after the deadline of s.
func measureGrowth(ctx context.Context, name string, s GrowthSpec, start starter) (*Growth, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	late := &PathError{s.String(), fmt.Errorf("not done in %v", s.Deadline)}
	bounded, cancel := context.WithTimeoutCause(ctx, s.Deadline, late)
	defer cancel()
	m := growthRun{spec: s, result: &Growth{Subject: name, Transport: s.Transport, Processes: s.Processes, Pipes: s.Pipes * (s.Processes - 1)}}
	err := m.start(bounded, start)
	if err == nil {
		err = m.measure(bounded)
	}
	var ends []error
	for _, p := range m.processes { // the hub first, so that no echo loses its pipes
		ends = append(ends, p.end())
	}
	if err := rootCause(err, ends...); err != nil {
		return nil, cmp.Or(context.Cause(bounded), err)
	}
	return m.result, nil
}
