package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// smallGrowth returns a measurement of few round trips.
func smallGrowth(t testing.TB, transport string, processes, pipes int) GrowthSpec {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("usage of other processes is known on Linux only")
	}
	if transport == shm.Name {
		needSharedMemory(t)
	}
	return GrowthSpec{
		Transport: transport, Processes: processes, Pipes: pipes, Trips: 30,
		TripTime: time.Minute, Idle: time.Millisecond, Deadline: time.Minute,
	}
}

// growers returns both libraries, or only this one if the other cannot be built.
func growers(t testing.TB) []Grower {
	t.Helper()
	self := Go{Child: child(t)}
	if err := (Libtensorpipe{}).Build(); err != nil {
		t.Log("without libtensorpipe: ", err)
		return []Grower{self}
	}
	return []Grower{self, Libtensorpipe{}}
}

// TestGrow tests that the results for one and several pipes and processes are complete, and that
// every pipe has descriptors.
func TestGrow(t *testing.T) {
	for _, transport := range []string{tcpTransport, shm.Name} {
		for _, size := range []struct{ processes, pipes int }{{2, 1}, {2, 3}, {3, 1}, {3, 2}} {
			s := smallGrowth(t, transport, size.processes, size.pipes)
			for _, g := range growers(t) {
				r, err := g.Grow(t.Context(), s)
				require.NoError(t, err, "%s: %s", g.Name(), s)
				t.Logf("%s: %+v", s, r)
				require.Equal(t, []string{g.Name(), transport}, []string{r.Subject, r.Transport})
				require.Equal(t, []int{size.processes, size.pipes * (size.processes - 1)}, []int{r.Processes, r.Pipes})
				require.GreaterOrEqual(t, r.DescriptorsPerPipe, 1.0)
				require.Less(t, r.DescriptorsPerPipe, 100.0)
				require.Equal(t, transport == shm.Name, r.SharedPerPipe > 0, "shared memory")
				require.GreaterOrEqual(t, r.IdleCore, 0.0)
				for _, trips := range []Trips{r.One, r.InTurn} {
					require.Equal(t, s.Trips, trips.Count)
					require.Positive(t, trips.P50)
					require.LessOrEqual(t, trips.P50, trips.P99)
					require.Positive(t, trips.CPU)
				}
			}
		}
	}
}

// TestGrowDescriptorLimit tests that a number of pipes for which the limit of descriptors does not
// suffice is a reason that has both numbers.
func TestGrowDescriptorLimit(t *testing.T) {
	s := smallGrowth(t, tcpTransport, 2, 1000)
	limited := child(t)
	limited.Args = []string{"-c", "ulimit -n 100; exec " + limited.Path}
	limited.Path = "/bin/sh"
	_, err := Go{Child: limited}.Grow(t.Context(), s)
	require.ErrorIs(t, err, ErrPath)
	require.ErrorContains(t, err, "1000 pipes over uv to 1 other process: about 10")
	require.ErrorContains(t, err, "file descriptors are needed, 1 for each pipe, and the limit of a process is 100")
}

// TestGrowDeadline tests that a measurement that takes too long ends with a reason.
func TestGrowDeadline(t *testing.T) {
	s := smallGrowth(t, tcpTransport, 2, 1)
	s.Idle, s.Deadline = time.Hour, 100*time.Millisecond
	_, err := Go{Child: child(t)}.Grow(t.Context(), s)
	require.ErrorIs(t, err, ErrPath)
	require.ErrorContains(t, err, "not done in 100ms")
}

// TestGrowInterrupted tests that the cause of an ended context is returned, and no reason.
func TestGrowInterrupted(t *testing.T) {
	s := smallGrowth(t, tcpTransport, 2, 1)
	s.Idle = time.Hour
	cause := errors.New("stopped by the user")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	for _, g := range growers(t) {
		_, err := g.Grow(ctx, s)
		require.ErrorIs(t, err, cause, g.Name())
		require.NotErrorIs(t, err, ErrPath, g.Name())
	}
}

// TestGrowProcessKilled tests that the death of a process is an error with its output, and no reason
// to leave the library out.
func TestGrowProcessKilled(t *testing.T) {
	s := smallGrowth(t, tcpTransport, 2, 1)
	killed := func(ctx context.Context, role string, answer any) (*process, error) {
		p, err := startProcess(ctx, role, Program{Path: "/bin/sh", Args: []string{"-c", "echo too many pipes >&2; kill -9 $$"}})
		if err != nil {
			return nil, err
		}
		return p, p.decode(answer)
	}
	_, err := measureGrowth(t.Context(), "any", s, killed)
	require.NotErrorIs(t, err, ErrPath)
	require.EqualError(t, err, "process hub: signal: killed: too many pipes")
}

// TestHubFindsDifference tests that a hub notices an echo with other bytes.
func TestHubFindsDifference(t *testing.T) {
	s := smallGrowth(t, tcpTransport, 2, 1).spec()
	opts, err := s.options("test", nil)
	require.NoError(t, err)
	pc, err := pipe.New(opts)
	require.NoError(t, err)
	defer pc.Close()
	l, err := pc.Listen(t.Context(), anyAddress(tcpTransport))
	require.NoError(t, err)
	var wrong sync.WaitGroup
	defer wrong.Wait()
	wrong.Go(func() {
		p, err := l.Accept(t.Context())
		if err != nil {
			return
		}
		if in, err := p.Next(t.Context()); err == nil {
			other, err := newSlot(s)
			if err == nil && readMessage(in, other.allocation(0)) == nil && other.fill(1, 7) == nil {
				_ = p.Write(t.Context(), other.message(0, true))
			}
		}
		_ = p.Close()
	})
	source, err := newSlot(s)
	require.NoError(t, err)
	echo, err := newSlot(s)
	require.NoError(t, err)
	h := &hub{context: pc, spec: s, source: source, echo: echo}
	_, err = h.do(t.Context(), fmt.Sprintf("%q", hubRequest{Verb: hubOpen, URL: l.URLs()[0], Count: 1}))
	require.ErrorIs(t, err, ErrCorrupt)
	for _, p := range h.pipes {
		_ = p.Close()
	}
	for _, line := range []string{"", "{}", `"open"`, `"one - 1 1 1`, `"fly - 1 1"`} {
		_, err := h.do(t.Context(), line)
		require.ErrorIs(t, err, ErrProtocol, line)
	}
}

// fakeGrower returns one error for each run, and appends its name to order.
type fakeGrower struct {
	name  string
	errs  []error
	order *[]string
}

func (f *fakeGrower) Name() string { return f.name }

func (f *fakeGrower) Grow(context.Context, GrowthSpec) (*Growth, error) {
	*f.order = append(*f.order, f.name)
	err := f.errs[0]
	f.errs = f.errs[1:]
	if err != nil {
		return nil, err
	}
	return &Growth{Subject: f.name, Threads: float64(len(f.errs))}, nil
}

func TestCompareGrowth(t *testing.T) {
	var order []string
	run := func(a, b []error) (*GrowthComparison, error) {
		order = nil
		return CompareGrowth(t.Context(), &fakeGrower{"a", a, &order}, &fakeGrower{"b", b, &order}, GrowthSpec{}, 3)
	}
	c, err := run(make([]error, 3), make([]error, 3))
	require.NoError(t, err)
	require.Equal(t, strings.Fields("a b b a a b"), order)
	require.Len(t, c.A, 3)
	require.Len(t, c.B, 3)
	require.Equal(t, 1.0, GrowthFigures()[3].Median(c.B))
	require.Equal(t, 1.0, GrowthFigures()[3].Ratio(c), "of the runs in which both have threads")
	require.Zero(t, GrowthFigures()[0].Ratio(c))

	why := &PathError{"many", errors.New("too many")}
	c, err = run(make([]error, 3), []error{nil, why})
	require.NoError(t, err)
	require.Equal(t, strings.Fields("a b b a a"), order)
	require.Len(t, c.A, 3)
	require.Empty(t, c.B)
	require.Equal(t, why, c.WhyB)

	_, err = run([]error{ErrCorrupt}, make([]error, 3))
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "a: ")

	c, err = CompareGrowth(t.Context(), &fakeGrower{"a", make([]error, 2), &order}, nil, GrowthSpec{}, 2)
	require.NoError(t, err)
	require.Len(t, c.A, 2)
	require.NoError(t, c.WhyB)
}

func TestGrowthSpecCheck(t *testing.T) {
	good := GrowthSpec{"uv", 2, 1, 1, 1, 1, 1}
	require.NoError(t, good.Check())
	for _, bad := range []GrowthSpec{
		{"mem", 2, 1, 1, 1, 1, 1}, {"uv", 1, 1, 1, 1, 1, 1}, {"uv", 2, 0, 1, 1, 1, 1}, {"uv", 2, 1, 0, 1, 1, 1},
		{"uv", 2, 1, 1, 0, 1, 1}, {"uv", 2, 1, 1, 1, 0, 1}, {"uv", 2, 1, 1, 1, 1, 0}, {"uv", 1 << 20, 1, 1, 1, 1, 1},
	} {
		require.ErrorIs(t, bad.Check(), ErrSpec, bad)
		_, err := Go{}.Grow(t.Context(), bad)
		require.ErrorIs(t, err, ErrSpec, bad)
	}
}
