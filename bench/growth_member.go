package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// echo does the job roleEcho: it listens, prints a serverInfo to out, and sends back every message of
// every pipe until ctx ends. The error is that of listening, of closing, or of out.
func (j job) echo(ctx context.Context, out *json.Encoder) error {
	opts, err := j.Spec.options("bench echo", j.catalog)
	if err != nil {
		return err
	}
	pc, err := pipe.New(opts)
	if err != nil {
		return err
	}
	l, err := pc.Listen(ctx, anyAddress(j.Spec.Transports[0]))
	if err != nil {
		return errors.Join(err, pc.Close())
	}
	if err := out.Encode(serverInfo{l.URLs()}); err != nil {
		return errors.Join(err, pc.Close())
	}
	var echoes sync.WaitGroup
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			break
		}
		echoes.Go(func() { p.Abort(echoAll(p, j.Spec)) })
	}
	err = pc.Close()
	echoes.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// newSlot returns memory for one message of s. The error is that of the allocator.
func newSlot(s Spec) (*arena, error) {
	a := &arena{buffers: BuffersDefault, contents: s.contents(), size: s.Size}
	return a, a.allocate(1)
}

// echoAll sends back every message of p, from the memory into which it was read, until the pipe ends.
// It returns the reason.
func echoAll(p *pipe.Pipe, s Spec) error {
	a, err := newSlot(s)
	if err != nil {
		return err
	}
	reply, to := a.message(0, s.Named), a.allocation(0)
	for {
		in, err := p.Next(context.Background())
		if err != nil {
			return err
		}
		if err := readMessage(in, to); err != nil {
			return err
		}
		if err := p.Write(context.Background(), reply); err != nil {
			return err
		}
	}
}

// hub does the job roleHub: it answers requests until ctx ends. The error is that of a pipe or of
// out, or matches ErrCorrupt or ErrProtocol.
func (j job) hub(ctx context.Context, requests <-chan string, out *json.Encoder) error {
	opts, err := j.Spec.options("bench hub", j.catalog)
	if err != nil {
		return err
	}
	source, err := newSlot(j.Spec)
	if err != nil {
		return err
	}
	echo, err := newSlot(j.Spec)
	if err != nil {
		return err
	}
	pc, err := pipe.New(opts)
	if err != nil {
		return err
	}
	h := &hub{context: pc, spec: j.Spec, source: source, echo: echo}
	err = h.serve(ctx, requests, out)
	for _, p := range h.pipes {
		p.Abort(err)
	}
	return errors.Join(err, pc.Close())
}

// serve answers requests until ctx ends, and then returns the cause. Otherwise the error is that of
// do or of out.
func (h *hub) serve(ctx context.Context, requests <-chan string, out *json.Encoder) error {
	// The round trips do not check ctx.
	defer context.AfterFunc(ctx, func() { _ = h.context.Close() })()
	if err := out.Encode(struct{}{}); err != nil {
		return err
	}
	for {
		select {
		case line := <-requests:
			samples, err := h.do(ctx, line)
			if err == nil {
				err = out.Encode(samples)
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hub is the process with many pipes.
type hub struct {
	context      *pipe.Context
	spec         Spec
	pipes        []*pipe.Pipe
	source, echo *arena
	number       int // of the next message
}

// do does what a line requests, and returns the round trips that it made.
func (h *hub) do(ctx context.Context, line string) (samples Samples, err error) {
	var text string
	var r hubRequest
	if err := json.Unmarshal([]byte(line), &text); err != nil {
		return samples, fmt.Errorf("%w: request %.80q", ErrProtocol, line)
	}
	if _, err := fmt.Sscan(text, &r.Verb, &r.URL, &r.Count, &r.Micros); err != nil {
		return samples, fmt.Errorf("%w: request %.80q", ErrProtocol, line)
	}
	switch {
	case r.Verb == hubTrim:
		runtime.GC()
		debug.FreeOSMemory()
		return samples, nil
	case r.Verb == hubOpen:
		for range r.Count {
			p, err := h.context.Dial(ctx, r.URL)
			if err != nil {
				return samples, err
			}
			h.pipes = append(h.pipes, p)
			if _, err := h.trip(p); err != nil {
				return samples, err
			}
		}
		return samples, nil
	case (r.Verb == hubOne || r.Verb == hubTurn) && len(h.pipes) > 0:
		samples.RoundTrips, err = h.trips(r)
		return samples, err
	}
	return samples, fmt.Errorf("%w: request %.80q", ErrProtocol, line)
}

// trips makes the round trips of r.
func (h *hub) trips(r hubRequest) (all []time.Duration, err error) {
	begin, limit := time.Now(), time.Duration(r.Micros)*time.Microsecond
	for i := range r.Count {
		p := h.pipes[0]
		if r.Verb == hubTurn {
			p = h.pipes[i%len(h.pipes)]
		}
		d, err := h.trip(p)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
		if time.Since(begin) > limit {
			break
		}
	}
	return all, nil
}

// trip makes a round trip on p and compares the echo. It returns the time from before the Write until
// the echo has been read. The error is that of the pipe or matches ErrCorrupt.
func (h *hub) trip(p *pipe.Pipe) (time.Duration, error) {
	if err := h.source.fill(1, h.number); err != nil {
		return 0, err
	}
	h.echo.clear(1)
	begin := time.Now()
	if err := p.Write(context.Background(), h.source.message(0, h.spec.Named)); err != nil {
		return 0, err
	}
	in, err := p.Next(context.Background())
	if err != nil {
		return 0, err
	}
	if err := readMessage(in, h.echo.allocation(0)); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	h.number++
	return took, h.echo.check(1, h.number-1)
}
