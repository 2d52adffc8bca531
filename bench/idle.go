package bench

import (
	"cmp"
	"context"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// IdleCost is what pipes cost on which nothing happens, for each of the two
// processes.
type IdleCost struct {
	Client, Server EndCost
}

// EndCost is the cost of one end. All but Core is 0 where the system does not say.
type EndCost struct {
	Core               float64 // share of one core: 0.01 is a percent
	BytesPerPipe       int     // resident
	PagesPerPipe       int     // resident bytes, of shared pages this process's part, and page tables
	DescriptorsPerPipe float64

	// Of the whole process, with all pipes.
	Resident    int // bytes
	Mapped      int // bytes that are mapped and shared with other processes
	Shared      int // bytes of those that have memory, touched or not; 0 without CAP_SYS_ADMIN
	Descriptors int
	Threads     int // more than before the first pipe
}

// Idle opens pipes between two processes and looks at both for a time in which
// nothing is sent. If s has a size, each pipe carries one such message before, or
// makes the round trips that s asks for: what moves the first large tensor opens what
// large tensors need.
func (g Go) Idle(ctx context.Context, s Spec, pipes int, d time.Duration) (*IdleCost, error) {
	s.OneProcess = false
	s.OneWay = 1
	if err := s.Check(); err != nil {
		return nil, err
	}
	end, err := g.start(ctx, s)
	if err != nil {
		return nil, err
	}
	cost, err := g.idle(ctx, s.withDefaults(), end, pipes, d)
	if err := blame(err, end.stop()); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return cost, nil
}

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
	c, err := newClient(nil, s)
	if err != nil {
		return nil, err
	}
	var none, empty, full, later [2]usage
	for _, step := range []func() error{
		func() (err error) { none, err = usages(end); return },
		func() (err error) { empty, err = c.open(ctx, pc, end, 1); return }, // which brings what all pipes share
		func() (err error) { full, err = c.open(ctx, pc, end, pipes); return },
		func() (err error) { return wait(ctx, d) },
		func() (err error) { later, err = usages(end); return },
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

// open opens more pipes, sends the messages of the spec on each, and returns the usage of
// both processes afterwards. All pipes share the memory of c.
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
			_, _, err = c.flood(1)
		}
		if err != nil {
			return both, err
		}
	}
	return usages(end)
}

// usages asks this process and the server.
func usages(end *serverEnd) (both [2]usage, err error) {
	if err := end.proc.ask("usage", &both[1]); err != nil {
		return both, err
	}
	both[0] = ownUsage()
	return both, nil
}

// wait lets time pass.
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
