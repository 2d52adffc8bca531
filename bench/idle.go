package bench

import (
	"context"
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// IdleCost is what pipes cost on which nothing happens, for each of the two
// processes.
type IdleCost struct {
	Client, Server EndCost
}

// EndCost is the cost of one end. Memory and descriptors are 0 where the system
// does not say.
type EndCost struct {
	Core               float64 // share of one core: 0.01 is a percent
	BytesPerPipe       int     // resident
	DescriptorsPerPipe float64
}

// Idle opens pipes between two processes and looks at both for a time in which
// nothing is sent.
func (g Go) Idle(ctx context.Context, s Spec, pipes int, d time.Duration) (*IdleCost, error) {
	s.OneProcess = false
	end, err := g.start(ctx, s)
	if err != nil {
		return nil, err
	}
	cost, err := idle(ctx, s, end, pipes, d)
	return cost, errors.Join(err, end.stop())
}

func idle(ctx context.Context, s Spec, end *serverEnd, pipes int, d time.Duration) (*IdleCost, error) {
	opts, err := s.options("bench client")
	if err != nil {
		return nil, err
	}
	pc, err := pipe.New(opts)
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	// The first pipe brings what all pipes share.
	empty, err := open(ctx, pc, end, 1)
	if err != nil {
		return nil, err
	}
	full, err := open(ctx, pc, end, pipes)
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, d); err != nil {
		return nil, err
	}
	later, err := usages(end)
	if err != nil {
		return nil, err
	}
	cost := func(i int) EndCost {
		return EndCost{
			Core:               (later[i].Before - full[i].After).Seconds() / d.Seconds(),
			BytesPerPipe:       (full[i].Resident - empty[i].Resident) / pipes,
			DescriptorsPerPipe: float64(full[i].Descriptors-empty[i].Descriptors) / float64(pipes),
		}
	}
	return &IdleCost{Client: cost(0), Server: cost(1)}, nil
}

// open opens more pipes and says what both processes take then.
func open(ctx context.Context, pc *pipe.Context, end *serverEnd, more int) ([2]usage, error) {
	for range more {
		if _, err := pc.Dial(ctx, end.url); err != nil {
			return [2]usage{}, err
		}
	}
	return usages(end)
}

// usages asks this process and the server.
func usages(end *serverEnd) (both [2]usage, err error) {
	if err := end.proc.tell("usage"); err != nil {
		return both, err
	}
	if err := end.proc.decode(&both[1]); err != nil {
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
