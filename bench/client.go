package bench

import (
	"context"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// client makes the measurements of a Spec on one pipe. It allocates all memory that it needs while the
// clock runs before it starts the clock.
type client struct {
	pipe        *pipe.Pipe
	spec        Spec // with defaults
	sources     memory
	echoes      memory
	sent        []*pipe.Message
	allocations []pipe.Allocation
	ops         []*pipe.WriteOp // those in flight
	number      int             // of the next message

	writes   []int64         // when the messages of a timed batch were written, by the wall clock
	handOver []time.Duration // of the messages of timed batches
}

// newClient returns a client that measures s on p, and allocates the messages of one batch. s must
// have its defaults. kind is that of the GPUs of s, nil for host memory. p may be nil until the first
// batch. The caller must call release after the pipe has ended. The error is that of the allocator.
func newClient(p *pipe.Pipe, s Spec, kind *cudaipc.Kind) (*client, error) {
	c := &client{pipe: p, spec: s, ops: make([]*pipe.WriteOp, s.Depth)}
	var err error
	if c.sources, err = newMemory(s, kind, false); err != nil {
		return nil, err
	}
	if c.echoes, err = newMemory(s, kind, false); err != nil {
		return nil, err
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

// release frees the memory of the messages and of their echoes. The pipe must not use that memory
// any more.
func (c *client) release() {
	c.sources.release()
	c.echoes.release()
}

// begin fills the first n messages with new contents, announces a batch of n messages of that kind
// to the server, and blocks until the server is ready. n must be at most len(c.sent). The error is
// that of the allocator or of the pipe, or matches ErrProtocol or ErrCorrupt if the server replies
// something else.
func (c *client) begin(kind string, n int) error {
	if err := c.sources.fill(n, c.number); err != nil {
		return err
	}
	if kind != kindSink {
		if err := c.echoes.resize(len(c.sent), c.spec.Size); err != nil {
			return err
		}
		for i := len(c.allocations); i < len(c.sent); i++ {
			c.allocations = append(c.allocations, c.echoes.allocation(i))
		}
	}
	o := batchCommand{kind, n, c.number, c.spec.Size, c.spec.Depth, c.spec.Named}
	if err := sendControl(c.pipe, o.String()); err != nil {
		return err
	}
	return expect(c.pipe, ctlReady)
}

// trip sends message i of the batch, and reads the echo that the server sends back into the memory
// for echo i. It blocks until both are done; for an echo on a GPU it waits for the stream of its memory.
// The error is that of the pipe or of the stream.
func (c *client) trip(i int) error {
	if c.spec.onGPU() {
		c.writes = append(c.writes, time.Now().UnixNano())
	}
	if err := c.pipe.Write(context.Background(), c.sent[i]); err != nil {
		return err
	}
	in, err := c.pipe.Next(context.Background())
	if err != nil {
		return err
	}
	if err := readMessage(in, c.allocations[i]); err != nil {
		return err
	}
	return c.echoes.settle(i)
}

// endTrips ends a batch of n round trips. It receives the CPU time that the server used for them,
// which it returns, and for GPUs the times at which the server had read the messages, and compares the
// echoes with the messages that were sent. The error matches
// ErrCorrupt if an echo differs, or ErrProtocol for an unexpected message, or is that of the pipe.
func (c *client) endTrips(n int) (serverCPU time.Duration, err error) {
	if serverCPU, err = expectDone(c.pipe); err != nil {
		return 0, err
	}
	if c.spec.onGPU() {
		reads, err := expectTimes(c.pipe)
		if err != nil {
			return 0, err
		}
		c.handOver, c.writes = append(c.handOver, handOvers(c.writes, reads)...), c.writes[:0]
	}
	err = c.echoes.check(n, c.number)
	c.number += n
	return serverCPU, err
}

// roundTrips makes n round trips, each after a pause of the length idle. It returns the duration of
// each, without the pause, and the CPU time of both processes for all of them, pauses included.
// After an error it returns the values so far.
func (c *client) roundTrips(n int, idle time.Duration) (samples []time.Duration, cpu time.Duration, err error) {
	samples = make([]time.Duration, 0, n)
	kind := kindEcho
	if c.spec.onGPU() {
		kind = kindTimed
	}
	err = c.inBatches(n, func(n int) error {
		if err := c.begin(kind, n); err != nil {
			return err
		}
		before := cpuTime()
		for i := range n {
			if idle > 0 {
				<-time.NewTimer(idle).C
			}
			start := time.Now()
			if err := c.trip(i); err != nil {
				return err
			}
			samples = append(samples, time.Since(start))
		}
		used := cpuTime() - before
		serverCPU, err := c.endTrips(n)
		cpu += c.totalCPU(used, serverCPU)
		return err
	})
	return samples, cpu, err
}

// totalCPU returns the sum of the CPU times of the client's and the server's process. If one
// process contains both ends, both arguments measure that process, and totalCPU returns the first.
func (c *client) totalCPU(clientCPU, serverCPU time.Duration) time.Duration {
	if c.spec.OneProcess {
		return clientCPU
	}
	return clientCPU + serverCPU
}

// oneWay sends n messages to the server, in batches. It returns the sum over the batches of the
// time from the first write until the server has read the whole batch, and the CPU time of both
// processes in these times. After an error it returns the sums so far.
func (c *client) oneWay(n int) (took, cpu time.Duration, err error) {
	err = c.inBatches(n, func(n int) error {
		t, used, err := c.sendBatch(n)
		took += t
		cpu += used
		return err
	})
	return took, cpu, err
}

// sendBatch sends a batch of n messages, at most len(c.sent), and then asks the server to compare
// their bytes with those sent. It returns the time from the first write until the server has read
// all messages, and the CPU time of both processes in that time; neither includes the comparison.
// The error matches ErrCorrupt if bytes differ, or ErrProtocol for an unexpected message, or is
// that of the pipe.
func (c *client) sendBatch(n int) (took, cpu time.Duration, err error) {
	if err := c.begin(kindSink, n); err != nil {
		return 0, 0, err
	}
	before, start := cpuTime(), time.Now()
	if err := c.send(n); err != nil {
		return 0, 0, err
	}
	serverCPU, err := expectDone(c.pipe)
	took = time.Since(start)
	cpu = c.totalCPU(cpuTime()-before, serverCPU)
	if err != nil {
		return 0, 0, err
	}
	err = c.verifyBatch()
	c.number += n
	return took, cpu, err
}

// verifyBatch asks the server to compare the bytes that it has received with those sent, and waits
// for the result. The error matches ErrCorrupt if they differ, or ErrProtocol for an unexpected
// message, or is that of the pipe.
func (c *client) verifyBatch() error {
	if err := sendControl(c.pipe, ctlCheck); err != nil {
		return err
	}
	return expect(c.pipe, ctlChecked)
}

// send writes the first n messages of the batch, at most Spec.Depth of them concurrently. n must be
// at most len(c.sent). send waits for the writes in order, and returns nil when all are done. At the
// first one that failed it returns the error of that write, while later writes may go on.
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

// inBatches divides n messages into batches of at most len(c.sent), and calls work with the size of
// each in turn. It stops at the first error and returns it.
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

// Samples holds the raw data of one measurement.
type Samples struct {
	RoundTrips []time.Duration `json:"rtt_ns"`
	ColdTrips  []time.Duration `json:"cold_ns"`
	HandOver   []time.Duration `json:"-"`          // of the messages of RoundTrips, on GPUs only
	TripCPU    time.Duration   `json:"rtt_cpu_ns"` // of both processes, for all of RoundTrips
	OneWay     time.Duration   `json:"one_way_ns"` // for all messages
	CPU        time.Duration   `json:"cpu_ns"`     // of both processes in that time
	Messages   int             `json:"messages"`   // one way

	// Routes of the tensors of the round trips, and of the messages one way; see Result. The C++
	// program does not report them.
	TripRoute   string `json:"-"`
	OneWayRoute string `json:"-"`
}

// warmUps returns the number of unmeasured round trips to make before n measured ones: about a
// tenth of n, from 1 to 1000.
func warmUps(n int) int { return min(n/10+1, 1000) }

// measure makes the round trips, the cold round trips and the one-way transfers of the spec, after
// unmeasured warm-ups, and returns their samples. After an error the samples are incomplete.
func (c *client) measure() (Samples, error) {
	s := Samples{Messages: c.spec.OneWay}
	trips, cold, n := c.spec.RoundTrips, c.spec.ColdTrips, c.spec.OneWay
	var err error
	if trips > 0 {
		if _, _, err = c.roundTrips(warmUps(trips), 0); err != nil {
			return s, err
		}
	}
	before := c.pipe.Stats()
	if trips > 0 {
		c.handOver = nil
		if s.RoundTrips, s.TripCPU, err = c.roundTrips(trips, 0); err != nil {
			return s, err
		}
		s.HandOver = c.handOver
	}
	if cold > 0 {
		if s.ColdTrips, _, err = c.roundTrips(cold, c.spec.Idle); err != nil {
			return s, err
		}
	}
	s.TripRoute = route(before, c.pipe.Stats(), c.tensors(2*(trips+cold)))
	if n == 0 {
		return s, nil
	}
	if _, _, err = c.oneWay(min(n, len(c.sent))); err != nil {
		return s, err
	}
	before = c.pipe.Stats()
	s.OneWay, s.CPU, err = c.oneWay(n)
	s.OneWayRoute = route(before, c.pipe.Stats(), c.tensors(n))
	return s, err
}

// tensors returns the number of tensors in that many messages: messages, or 0 if the messages of
// the spec are empty.
func (c *client) tensors(messages int) int {
	if c.spec.Size == 0 {
		return 0
	}
	return messages
}

// Percentiles are percentiles of times in microseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// percentiles returns the percentiles of samples in microseconds, or nil if there are no samples.
// It does not change samples.
func percentiles(samples []time.Duration) *Percentiles {
	if len(samples) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := func(percent int) float64 {
		rank := (len(sorted)*percent + 99) / 100
		return float64(sorted[max(rank, 1)-1].Nanoseconds()) / 1e3
	}
	return &Percentiles{P50: at(50), P90: at(90), P99: at(99)}
}
