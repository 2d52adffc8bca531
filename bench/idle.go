package bench

import (
	"cmp"
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// IdleCost is the cost of idle pipes for the client process and for the server process.
type IdleCost struct {
	Client, Server EndCost
}

// EndCost is the cost of idle pipes for one process. All fields but Core are 0 if the system does not
// report them.
type EndCost struct {
	Core               float64 // fraction of one core: 0.01 is a percent
	BytesPerPipe       int     // resident
	PagesPerPipe       int     // resident memory, with this process's part of shared pages, and page tables
	DescriptorsPerPipe float64

	// Totals of the process with all pipes.
	Resident    int // bytes
	Mapped      int // bytes of mappings shared with other processes
	Shared      int // bytes of these that have pages, touched or not; 0 without CAP_SYS_ADMIN
	Descriptors int
	Threads     int // more than before the first pipe
}

// Idle opens pipes between this process and a child process, as many as the argument pipes, which
// must be at least 1. It observes both processes for the duration d, which must be more than 0 and in
// which nothing is sent, and returns the cost of the pipes. It ignores s.OneProcess. If s.Size is not
// 0, each pipe first makes the round trips of s or, without any, carries one message one way, so that
// it has everything that large tensors need. The error matches ErrSpec, ErrCorrupt or ErrProtocol, is
// a *ProcessError, the cause of ctx, or that of starting a process, of an allocator or of package
// pipe.
func (g Go) Idle(ctx context.Context, s Spec, pipes int, d time.Duration) (*IdleCost, error) {
	if pipes < 1 || d <= 0 {
		return nil, specErrorf("%d idle pipes for %v: want at least one, for some time", pipes, d)
	}
	s.OneProcess = false
	s.OneWay = 1
	if err := cmp.Or(s.Check(), s.checkHost()); err != nil {
		return nil, err
	}
	end, err := g.start(ctx, s, nil)
	if err != nil {
		return nil, err
	}
	cost, err := g.idle(ctx, s.withDefaults(), end, pipes, d)
	if err := rootCause(err, end.stop()); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return cost, nil
}

// idle opens one pipe to the server, and then further ones, whose number is the argument pipes. It
// returns the cost of the further ones for both processes while nothing is sent for the duration d.
// All pipes are closed when it returns. The error is that of Spec.options, of newClient, of opening
// or using a pipe, of the server's process, or the cause of ctx.
func (g Go) idle(ctx context.Context, s Spec, end *serverEnd, pipes int, d time.Duration) (*IdleCost, error) {
	opts, err := s.options("bench client", g.Catalog)
	if err != nil {
		return nil, err
	}
	pc, err := pipe.New(opts)
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	c, err := newClient(nil, s, nil)
	if err != nil {
		return nil, err
	}
	defer c.release()
	var none, empty, full, later [2]usage
	for _, step := range []func() error{
		func() (err error) { none, err = usageOfBoth(end); return },
		func() (err error) { empty, err = c.open(ctx, pc, end, 1); return }, // includes what all pipes share
		func() (err error) { full, err = c.open(ctx, pc, end, pipes); return },
		func() (err error) { return wait(ctx, d) },
		func() (err error) { later, err = usageOfBoth(end); return },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	cost := func(i int) EndCost {
		return EndCost{
			Core:               (later[i].Before - full[i].After).Seconds() / d.Seconds(),
			BytesPerPipe:       (full[i].Resident - empty[i].Resident) / pipes,
			PagesPerPipe:       (later[i].Pages - empty[i].Pages) / pipes,
			DescriptorsPerPipe: float64(full[i].Descriptors-empty[i].Descriptors) / float64(pipes),
			Resident:           later[i].Resident,
			Mapped:             later[i].Mapped,
			Shared:             later[i].Shared,
			Descriptors:        later[i].Descriptors,
			Threads:            later[i].Threads - none[i].Threads,
		}
	}
	return &IdleCost{Client: cost(0), Server: cost(1)}, nil
}

// open opens further pipes to the server, whose number is the argument more, and sends the messages
// of the spec on each. All pipes use the memory of c and stay open until pc is closed; c.pipe is
// the last one. open returns the resource usage of this process and of the server's process
// afterwards, in this order, or the first error.
func (c *client) open(ctx context.Context, pc *pipe.Context, end *serverEnd, more int) (both [2]usage, err error) {
	for range more {
		if c.pipe, err = pc.Dial(ctx, end.url); err != nil {
			return both, err
		}
		if c.spec.Size == 0 {
			continue
		}
		if n := c.spec.RoundTrips; n > 0 {
			_, _, err = c.roundTrips(n, 0)
		} else {
			_, _, err = c.sendBatch(1)
		}
		if err != nil {
			return both, err
		}
	}
	return usageOfBoth(end)
}

// usageOfBoth returns the resource usage of this process and of the server's process, in this
// order. The server must run in another process. The error is that of the request to it.
func usageOfBoth(end *serverEnd) (both [2]usage, err error) {
	if err := end.proc.request("usage", &both[1]); err != nil {
		return both, err
	}
	both[0] = ownUsage()
	return both, nil
}

// wait blocks for the duration d and returns nil. If ctx ends earlier, it returns the cause of ctx
// at once.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// usage is the resources that a process uses at one moment.
type usage struct {
	// CPU time before and after the other figures were determined, which takes CPU time itself.
	Before time.Duration `json:"before_ns"`
	After  time.Duration `json:"after_ns"`

	Resident    int `json:"resident_bytes"` // 0 if unknown, as are all fields below
	Pages       int `json:"pages_bytes"`    // with this process's part of shared pages, and page tables
	Descriptors int `json:"descriptors"`
	Mapped      int `json:"mapped_bytes"` // mappings of package shm
	Shared      int `json:"shared_bytes"` // bytes of these that have pages
	Threads     int `json:"threads"`
}

// ownUsage collects garbage, returns unused memory to the system, and then returns the resource
// usage of this process. Figures that the system does not report are 0.
func ownUsage() usage {
	u := usage{Before: cpuTime()}
	runtime.GC()
	debug.FreeOSMemory()
	u.Resident, u.Descriptors = residentBytes(), descriptors()
	u.Pages = pageBytes()
	u.Mapped, u.Shared = sharedBytes()
	u.Threads = threads()
	u.After = cpuTime()
	return u
}
