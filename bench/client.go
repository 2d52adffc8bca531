package bench

import (
	"context"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// client measures on one pipe. What it does in the time that counts is
// allocated before.
type client struct {
	pipe    *pipe.Pipe
	spec    Spec // with defaults
	sources arena
	echoes  arena
	sent    []*pipe.Message
	rooms   []pipe.Allocation
	ops     []*pipe.WriteOp // those in flight
	number  int             // of the next message
}

// newClient makes the messages of a batch.
func newClient(p *pipe.Pipe, s Spec) (*client, error) {
	c := &client{
		pipe: p, spec: s, ops: make([]*pipe.WriteOp, s.Depth),
		sources: arena{buffers: s.Buffers, contents: s.contents()},
		echoes:  arena{buffers: s.Buffers, contents: s.contents()},
	}
	n := s.batch()
	if err := c.sources.resize(n, s.Size); err != nil {
		return nil, err
	}
	for i := range n {
		c.sent = append(c.sent, c.sources.message(i, s.Named))
	}
	return c, nil
}

// release gives the memory back, when the pipe has let go of it.
func (c *client) release() {
	c.sources.release()
	c.echoes.release()
}

// makeRoom makes memory for the echoes of a batch, and spoils what is there.
func (c *client) makeRoom() error {
	if err := c.echoes.resize(len(c.sent), c.spec.Size); err != nil {
		return err
	}
	for i := len(c.rooms); i < len(c.sent); i++ {
		c.rooms = append(c.rooms, c.echoes.room(i))
	}
	return nil
}

// begin announces a batch of n messages with fresh contents.
func (c *client) begin(kind string, n int) error {
	c.sources.fill(n, c.number)
	if kind == kindEcho {
		if err := c.makeRoom(); err != nil {
			return err
		}
	}
	o := order{kind, n, c.number, c.spec.Size, c.spec.Depth, c.spec.Named}
	if err := say(c.pipe, o.String()); err != nil {
		return err
	}
	return expect(c.pipe, wordReady)
}

// trip sends message i of the batch and reads its echo.
func (c *client) trip(i int) error {
	if err := c.pipe.Write(context.Background(), c.sent[i]); err != nil {
		return err
	}
	in, err := c.pipe.Next(context.Background())
	if err != nil {
		return err
	}
	return take(in, c.rooms[i])
}

// endTrips compares the n echoes of a batch, and returns the server's CPU time.
func (c *client) endTrips(n int) (theirs time.Duration, err error) {
	if theirs, err = expectDone(c.pipe); err != nil {
		return 0, err
	}
	err = c.echoes.check(n, c.number)
	c.number += n
	return theirs, err
}

// roundTrips makes n round trips, each after idle, and returns the times, and
// the CPU time of both processes.
func (c *client) roundTrips(n int, idle time.Duration) (samples []time.Duration, cpu time.Duration, err error) {
	samples = make([]time.Duration, 0, n)
	err = c.inBatches(n, func(n int) error {
		if err := c.begin(kindEcho, n); err != nil {
			return err
		}
		before := cpuTime()
		for i := range n {
			rest(idle)
			start := time.Now()
			if err := c.trip(i); err != nil {
				return err
			}
			samples = append(samples, time.Since(start))
		}
		used := cpuTime() - before
		theirs, err := c.endTrips(n)
		cpu += c.both(used, theirs)
		return err
	})
	return samples, cpu, err
}

// both is the CPU time of two processes, or of the one that both ends are in.
func (c *client) both(ours, theirs time.Duration) time.Duration {
	if c.spec.OneProcess {
		return ours
	}
	return ours + theirs
}

// rest lets time pass in which this process does nothing.
func rest(d time.Duration) {
	if d > 0 {
		<-time.NewTimer(d).C
	}
}

// oneWay sends n messages and returns how long that took, and the CPU time of
// both processes.
func (c *client) oneWay(n int) (took, cpu time.Duration, err error) {
	err = c.inBatches(n, func(n int) error {
		t, used, err := c.flood(n)
		took += t
		cpu += used
		return err
	})
	return took, cpu, err
}

// flood sends one batch.
func (c *client) flood(n int) (took, cpu time.Duration, err error) {
	if err := c.begin(kindSink, n); err != nil {
		return 0, 0, err
	}
	before, start := cpuTime(), time.Now()
	if err := c.send(n); err != nil {
		return 0, 0, err
	}
	theirs, err := expectDone(c.pipe)
	took = time.Since(start)
	cpu = c.both(cpuTime()-before, theirs)
	if err != nil {
		return 0, 0, err
	}
	err = c.endFlood()
	c.number += n
	return took, cpu, err
}

// endFlood has the server look at what came.
func (c *client) endFlood() error {
	if err := say(c.pipe, wordCheck); err != nil {
		return err
	}
	return expect(c.pipe, wordChecked)
}

// send writes n messages, Depth of them at a time, and returns when all have
// left.
func (c *client) send(n int) error {
	for i := range n + len(c.ops) {
		slot := i % len(c.ops)
		if op := c.ops[slot]; op != nil {
			c.ops[slot] = nil
			if err := op.Wait(context.Background()); err != nil {
				return err
			}
		}
		if i < n {
			c.ops[slot] = c.pipe.WriteAsync(context.Background(), c.sent[i])
		}
	}
	return nil
}

// inBatches cuts n messages into batches.
func (c *client) inBatches(n int, work func(n int) error) error {
	for n > 0 {
		part := min(n, len(c.sent))
		if err := work(part); err != nil {
			return err
		}
		n -= part
	}
	return nil
}
