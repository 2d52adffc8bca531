package bench

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Go is this library. The client runs in the calling process, the server in a
// child.
type Go struct {
	Child   Program // must call RunChild, with the same Catalog
	Catalog Catalog
}

// Name is "tensorpipe-go".
func (Go) Name() string { return "tensorpipe-go" }

// Measure implements Subject.
func (g Go) Measure(ctx context.Context, s Spec) (*Result, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	opts, err := s.options("bench client", g.Catalog)
	if err == nil {
		err = findPath(s, opts)
	}
	if err != nil {
		return nil, err
	}
	end, err := g.start(ctx, s)
	if err != nil {
		return nil, err
	}
	var r *Result
	err = withClient(ctx, s, opts, end.url, func(c *client, plan *pipe.Plan) error {
		if err := checkPath(s, plan); err != nil {
			return err
		}
		samples, err := c.measure()
		if err == nil {
			r = newResult(g.Name(), s, plan, samples)
			r.WireShare = wireShare(c.pipe.Stats().Compression)
		}
		return err
	})
	if err := blame(err, end.stop()); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return r, nil
}

// serverEnd is a server, wherever it runs.
type serverEnd struct {
	url  string
	stop func() error // returns what went wrong at that end, if anything
	proc *process     // nil: it runs in this process
}

// start starts the server where the spec wants it.
func (g Go) start(ctx context.Context, s Spec) (*serverEnd, error) {
	if s.OneProcess {
		l, err := listen(ctx, s, g.Catalog)
		if err != nil {
			return nil, err
		}
		return &serverEnd{url: l.urls()[0], stop: l.close}, nil
	}
	p, err := startProcess(ctx, "bench server", g.Child)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	var hello greeting
	err = p.ask(job{Role: roleServer, Spec: s}, &hello)
	if err == nil && len(hello.URLs) == 0 {
		err = ErrProtocol
	}
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), blame(err, p.end()))
	}
	return &serverEnd{url: hello.URLs[0], stop: p.end, proc: p}, nil
}

// withClient opens a pipe to a server, runs work on it and closes it. The end of
// ctx breaks the pipe: the loops that are measured look at no ctx.
func withClient(ctx context.Context, s Spec, opts pipe.Options, url string, work func(*client, *pipe.Plan) error) error {
	pc, err := pipe.New(opts)
	if err != nil {
		return err
	}
	p, err := pc.Dial(ctx, url)
	if err != nil {
		return errors.Join(err, pc.Close())
	}
	unwatch := context.AfterFunc(ctx, func() { p.Abort(context.Cause(ctx)) })
	defer unwatch()
	c, err := newClient(p, s.withDefaults())
	if err == nil {
		err = work(c, p.Plan())
	}
	if err != nil {
		p.Abort(err)
	}
	err = errors.Join(err, pc.Close())
	if c != nil {
		c.release()
	}
	return err
}

// tripsFor makes round trips until d has passed, and returns the times.
func (c *client) tripsFor(d time.Duration) ([]time.Duration, error) {
	const batch = 256
	var all []time.Duration
	for start := time.Now(); time.Since(start) < d; {
		samples, _, err := c.roundTrips(batch, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, samples...)
	}
	return all, nil
}
