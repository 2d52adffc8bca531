package bench

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Go is the Subject that measures this library. The client runs in the calling process, the server in a
// child process, or in the calling process if Spec.OneProcess is set.
type Go struct {
	Child   Program // must call RunChild with the same Catalog
	Catalog Catalog
	Trace   *Trace // collects the events of Measure's pipes at both ends; nil: none are collected
}

// Name returns "tensorpipe-go", the name of this library in results.
func (Go) Name() string { return "tensorpipe-go" }

// Measure starts a server, opens a pipe to it, makes the transfers that s describes, stops the
// server, and returns the result. If ctx ends it aborts the pipe and returns the cause of ctx.
// Otherwise the error matches ErrSpec, ErrPath, ErrCorrupt or ErrProtocol, is a *ProcessError, or
// that of starting a process, of an allocator or of package pipe. With an error the result is nil.
func (g Go) Measure(ctx context.Context, s Spec) (*Result, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	opts, kind, err := s.open("bench client", g.Catalog)
	if err != nil {
		return nil, err
	}
	r, err := g.measure(ctx, s, opts, kind)
	// The process of the server has ended, which may have mapped memory of the GPUs.
	if err := errors.Join(err, closeGPUs(kind)); err != nil {
		return nil, err
	}
	return r, nil
}

// measure is Measure with the options opts for the client, and with kind for the memory of the client,
// see newClient.
func (g Go) measure(ctx context.Context, s Spec, opts pipe.Options, kind *cudaipc.Kind) (*Result, error) {
	if err := checkViable(s, opts); err != nil {
		return nil, err
	}
	opts.Events = g.Trace.of("client")
	end, err := g.start(ctx, s, g.Trace)
	if err != nil {
		return nil, err
	}
	var r *Result
	err = withClient(ctx, s, opts, kind, end.url, func(c *client, plan *pipe.Plan) error {
		if err := checkPath(s, plan, kind); err != nil {
			return err
		}
		samples, err := c.measure()
		if err == nil {
			r = newResult(g.Name(), s, plan, samples)
			r.WireShare = wireShare(c.pipe.Stats().Compression)
		}
		return err
	})
	if err := rootCause(err, end.stop()); err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	return r, nil
}

// serverEnd is a running server, in this process or another one. Its user must call stop.
type serverEnd struct {
	url  string
	stop func() error // stops the server and returns its error
	proc *process     // nil if the server runs in this process
}

// start starts the server of s and returns it once it listens. The server runs in this process if
// s.OneProcess is true, and otherwise in a child process. The caller must call the result's stop; a
// child process is also killed when ctx ends. If trace is not nil, it has the events of the server's
// pipes once stop has returned nil, and a server in a child process does not answer requests for its
// usage. The error matches ErrSpec or ErrProtocol, is a *ProcessError, the cause of ctx, or that of
// starting a process or of package pipe.
func (g Go) start(ctx context.Context, s Spec, trace *Trace) (*serverEnd, error) {
	if s.OneProcess {
		l, err := listen(ctx, s, g.Catalog, trace)
		if err != nil {
			return nil, err
		}
		return &serverEnd{url: l.listener.URLs()[0], stop: l.close}, nil
	}
	p, err := startProcess(ctx, "bench server", g.Child)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	var info serverInfo
	err = p.request(job{Role: roleServer, Spec: s, Trace: trace != nil}, &info)
	if err == nil && len(info.URLs) == 0 {
		err = ErrProtocol
	}
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), rootCause(err, p.end()))
	}
	stop := p.end
	if trace != nil {
		stop = func() error {
			var events []traceEvent
			if err := p.request("stop", &events); err != nil {
				return cmp.Or(p.end(), err)
			}
			trace.merge(events)
			return p.end()
		}
	}
	return &serverEnd{url: info.URLs[0], stop: stop, proc: p}, nil
}

// withClient opens a pipe to the server at url, and calls work with a client of the pipe, whose memory is
// of kind, and the plan of the pipe. Before it returns, it closes the pipe and releases the client's memory. If ctx
// ends it aborts the pipe, because the measured loops do not check ctx. The error is that of
// opening the pipe, of newClient, of work, or of closing, or several of them joined.
func withClient(ctx context.Context, s Spec, opts pipe.Options, kind *cudaipc.Kind, url string, work func(*client, *pipe.Plan) error) error {
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
	c, err := newClient(p, s.withDefaults(), kind)
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

// BusyPair is the result of one of several pairs of processes that made round trips concurrently.
type BusyPair struct {
	RTT            *Percentiles
	TripsPerSecond float64 // includes the time of the slowest trips
}

// Busy starts pairs of a server and a client process, as many as the argument pairs, lets all
// clients make round trips concurrently for the duration d, and returns one result for each pair.
// It shows whether a process that spins slows down the others. All processes have ended when it
// returns. The error matches ErrSpec or ErrProtocol, is a *ProcessError, as when ctx ends during
// the round trips, the cause of ctx, or that of starting a process or of package pipe. Errors of
// several clients are joined. With an error the results have no meaning.
func (g Go) Busy(ctx context.Context, s Spec, pairs int, d time.Duration) ([]BusyPair, error) {
	if err := s.checkHost(); err != nil {
		return nil, err
	}
	clients := make([]*process, pairs)
	for i := range pairs {
		server, err := g.start(ctx, s, nil)
		if err != nil {
			return nil, err
		}
		defer server.stop()
		if clients[i], err = startProcess(ctx, "bench client", g.Child); err != nil {
			return nil, err
		}
		defer clients[i].end()
		j := job{Role: roleTrips, Spec: s, URL: server.url, For: d}
		if err := clients[i].request(j, &struct{}{}); err != nil {
			return nil, err
		}
	}
	for _, c := range clients {
		if err := c.send("go"); err != nil {
			return nil, err
		}
	}
	out, errs := make([]BusyPair, pairs), make([]error, pairs)
	var collecting sync.WaitGroup
	for i, c := range clients {
		collecting.Go(func() {
			var samples Samples
			errs[i] = c.decode(&samples)
			out[i] = newBusyPair(samples.RoundTrips)
		})
	}
	collecting.Wait()
	return out, errors.Join(errs...)
}

// newBusyPair returns the result of one pair of processes from the durations of its round trips,
// which may be none.
func newBusyPair(samples []time.Duration) BusyPair {
	var total time.Duration
	for _, d := range samples {
		total += d
	}
	return BusyPair{RTT: percentiles(samples), TripsPerSecond: float64(len(samples)) / max(total, 1).Seconds()}
}
