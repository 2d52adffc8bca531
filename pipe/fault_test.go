package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// TestFaultAtEveryFrame checks that all calls end with an expected error if a connection fails. It
// runs a scenario, a pipe with messages of every form in both directions, once for each frame
// boundary of each connection and once within each frame, with the fault at that point. On a raw
// connection each write counts as a frame.
func TestFaultAtEveryFrame(t *testing.T) {
	short.Skip(t, "a fault at each frame of each connection")
	for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
		for name, factory := range map[string]channel.Factory{"basic": basic.New(), "xth": xth.New()} {
			overMem := func() setup { return setup{mem.New(mem.NewNetwork()), "faulty", plain(factory), dialect} }
			overUV := func() setup { return setup{uv.New(), "127.0.0.1:0", plain(factory), dialect} }
			with := name + "+" + string(dialect)

			// After a cut every call must end without being cancelled.
			t.Run("cut over mem+"+with, func(t *testing.T) {
				eachPoint(t, runScenario(t, overMem, nil), 5, func(t *testing.T, at simnet.Point) {
					synctest.Test(t, func(t *testing.T) { runScenario(t, overMem, nil, simnet.CutAt(at)) })
				})
			})
			t.Run("cut over uv+"+with, func(t *testing.T) {
				eachPoint(t, runScenario(t, overUV, nil), 5, func(t *testing.T, at simnet.Point) {
					t.Parallel() // if only bulk breaks, both ends wait for a close frame of the other
					runScenario(t, overUV, nil, simnet.CutAt(at))
				})
			})
			// On a link that drops everything, calls end when they are cancelled.
			t.Run("cancelled over mem+"+with, func(t *testing.T) {
				eachPoint(t, runScenario(t, overMem, nil), 5, func(t *testing.T, at simnet.Point) {
					synctest.Test(t, func(t *testing.T) { runScenario(t, overMem, synctest.Wait, simnet.HalfOpenAt(at)) })
				})
			})
		}
	}
}

// TestFaultAtEveryFrameOfLanes checks as TestFaultAtEveryFrame does, with a channel whose lanes
// carry large tensors, and faults also on the lanes.
func TestFaultAtEveryFrameOfLanes(t *testing.T) {
	short.Skip(t, "a fault at each frame of each lane")
	over := func() setup { return setup{mem.New(mem.NewNetwork()), "faulty", striped, pipe.DialectNative} }
	var whole *simnet.Network
	synctest.Test(t, func(t *testing.T) { whole = runScenario(t, over, nil) })
	require.True(t, lanesCarry(whole))
	t.Run("cut", func(t *testing.T) {
		eachPoint(t, whole, 15, func(t *testing.T, at simnet.Point) {
			synctest.Test(t, func(t *testing.T) { runScenario(t, over, nil, simnet.CutAt(at)) })
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		eachPoint(t, whole, 15, func(t *testing.T, at simnet.Point) {
			synctest.Test(t, func(t *testing.T) { runScenario(t, over, synctest.Wait, simnet.HalfOpenAt(at)) })
		})
	})
}

// TestSlowLinks checks in both dialects that all calls of the scenario succeed on links with a
// delay, a low rate, or both.
func TestSlowLinks(t *testing.T) {
	for _, dialect := range []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} {
		for name, rules := range map[string][]simnet.Rule{
			"delay":          {simnet.Delay(300 * time.Millisecond)},
			"rate":           {simnet.Rate(256 << 10)},
			"delay and rate": {simnet.Delay(40 * time.Millisecond), simnet.Rate(2 << 20), simnet.Jitter(1, 10*time.Millisecond)},
		} {
			t.Run(name+" "+string(dialect), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					over := func() setup { return setup{mem.New(mem.NewNetwork()), "slow", plain(basic.New()), dialect} }
					l, _ := startScenario(t, over, nil, rules...)
					l.check(t, true)
				})
			})
		}
	}
}

// setup is the transport, channel and dialect of a scenario.
type setup struct {
	transport transport.Transport
	addr      string
	channel   func(transport.Transport) channel.Factory
	dialect   pipe.Dialect
}

// plain returns a function that ignores its transport and returns f. It is for channels that need
// no transport of their own.
func plain(f channel.Factory) func(transport.Transport) channel.Factory {
	return func(transport.Transport) channel.Factory { return f }
}

// lanes is the number of lanes of a striped channel.
const lanes = 2

func striped(t transport.Transport) channel.Factory {
	return mpt.New(mpt.Lanes{Count: lanes, Transport: t})
}

// eachPoint runs f as a subtest for each point before and within a frame that faultless, a network
// on which the scenario has run without faults, has carried. Under the race detector it takes only
// every n-th point; every is n. If the number of frames depends on the timing, a point may lie
// after the end of a later run, and a fault there has no effect.
func eachPoint(t *testing.T, faultless *simnet.Network, every int, f func(t *testing.T, at simnet.Point)) {
	points := pointsOf(faultless)
	require.Greater(t, len(points), 30)
	tested := 0
	for i, p := range points {
		if race.Includes(i, len(points), every) {
			tested++
			t.Run(p.name, func(t *testing.T) { f(t, p.at) })
		}
	}
	t.Logf("%d of %d points", tested, len(points))
}

// point is a position in the frames of a scenario.
type point struct {
	name string
	at   simnet.Point
}

// pointsOf returns, for each frame that network has carried, the point before the frame and one
// within it, with names for subtests.
func pointsOf(network *simnet.Network) (all []point) {
	for _, l := range network.Links() {
		for _, end := range []simnet.End{simnet.Dialled, simnet.Accepted} {
			for n := range l.Sent(end).Frames {
				name := func(position string) string {
					return fmt.Sprintf("link %d end %d %s frame %d", l.Number(), end, position, n)
				}
				all = append(all,
					point{name("before"), simnet.AfterFrames(l.Number(), end, n)},
					point{name("within"), simnet.WithinFrame(l.Number(), end, n, 3)})
			}
		}
	}
	return all
}

// scenario is one run: two contexts, a pipe between them, and the errors of its calls.
type scenario struct {
	ctx            context.Context
	client, server *pipe.Context
	network        *simnet.Network
	faultless      bool
	mu             sync.Mutex
	errs           []error
}

// runScenario runs the scenario on a network with the given rules, and requires that its calls
// return only errors that may follow a fault, or none if there are no rules. If settle is not nil,
// runScenario calls it while the scenario runs and cancels all calls when it returns. The result is
// the network, for its statistics.
func runScenario(t *testing.T, over func() setup, settle func(), rules ...simnet.Rule) *simnet.Network {
	s, network := startScenario(t, over, settle, rules...)
	s.check(t, s.faultless)
	return network
}

// startScenario runs the scenario to its end as runScenario does, but checks no errors. It returns
// the scenario, which has them, and the network.
func startScenario(t *testing.T, over func() setup, settle func(), rules ...simnet.Rule) (*scenario, *simnet.Network) {
	setup := over()
	network := simnet.New(setup.transport, rules...)
	options := func() pipe.Options {
		factory := setup.channel(network)
		name := "tensors"
		if _, ok := factory.(*mpt.Factory); ok {
			name = mpt.UVName
		}
		o := pipe.Options{
			Dialect:    setup.dialect,
			Transports: []pipe.TransportEntry{{Name: "sim", Transport: network}},
			Channels:   []pipe.ChannelEntry{{Name: name, Factory: factory}},
		}
		if len(rules) == 0 {
			longTimeouts(&o) // not with faults, where both ends wait for this long
		}
		return o
	}
	ctx, cancel := context.WithCancelCause(testContext(t))
	s := &scenario{ctx: ctx, network: network, faultless: len(rules) == 0}
	var err error
	s.client, err = pipe.New(options())
	require.NoError(t, err)
	s.server, err = pipe.New(options())
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(t, "sim://"+setup.addr)
	}()
	if settle != nil {
		settle()
		cancel(errEnough)
	}
	<-done
	for _, c := range []*pipe.Context{s.client, s.server} {
		if err := c.Close(); err != nil {
			s.record(err)
		}
	}
	cancel(nil)
	return s, network
}

func (s *scenario) run(t *testing.T, url string) {
	listener, err := s.server.Listen(s.ctx, url)
	require.NoError(t, err)
	ctx, failed := context.WithCancelCause(s.ctx)
	defer failed(nil)
	accepted := make(chan struct{})
	var calls sync.WaitGroup
	defer calls.Wait()
	calls.Go(func() {
		client, err := s.client.Dial(ctx, listener.URLs()[0])
		if !s.record(err) {
			failed(errEnough) // ends Accept, which has no pipe to return
			return
		}
		// The other end may yet fail to open the pipe.
		calls.Go(func() {
			select {
			case <-client.Done():
				failed(errEnough)
			case <-accepted:
			}
		})
		s.sendRequests(client)
	})
	server, err := listener.Accept(ctx)
	close(accepted)
	if s.record(err) {
		s.serve(t, server)
	}
}

// requests returns the messages that the client of the scenario sends: new messages of every form.
// The second and the third exceed the read-ahead limits.
func requests() []*pipe.Message {
	return []*pipe.Message{
		message(1, []int{100}, []int{1000}),
		message(2, []int{300_000}, []int{200_000, 10}, device.CPU(), device.Device{}),
		message(3, nil, []int{70_000, 80_000}, device.Device{}, device.CPU()),
		message(4, nil, nil),
		dataMessage(append(garbage(90_000), make([]byte, 90_000)...), pipe.CompressionS2, device.CPU()),
	}
}

func (s *scenario) sendRequests(client *pipe.Pipe) {
	var ops []*pipe.WriteOp
	sent := requests()
	for _, m := range sent {
		ops = append(ops, client.WriteAsync(s.ctx, m))
	}
	s.sendStriped(client)
	if client.Plan().Dialect == pipe.DialectNative {
		s.sendAborted(client)
	}
	if in, err := client.Next(s.ctx); s.record(err) {
		s.record(in.Read(s.ctx, pipe.NewAllocation(in.Descriptor())))
	}
	for i, op := range ops {
		s.record(op.Wait(s.ctx))
		overwrite(sent[i]) // the race detector reports a later use
	}
}

// sendStriped sends large tensors until the lanes of the channel carry them, or 20 were sent. The
// last message has no metadata, by which the reader knows it. sendStriped does nothing if the
// channel has no lanes. In a run without faults, which has virtual time, it waits after each tensor
// until all other goroutines are blocked, so that the lanes can open.
func (s *scenario) sendStriped(client *pipe.Pipe) {
	if !isStriped(client) {
		return
	}
	const most = 20 // lanes that are cut never carry a tensor
	for i := range most {
		m := message(9, nil, []int{1 << 20}, device.CPU())
		last := i == most-1 || lanesCarry(s.network)
		if last {
			m.Metadata = nil
		}
		if !s.record(client.Write(s.ctx, m)) || last {
			return
		}
		if s.faultless {
			synctest.Wait()
		}
	}
}

// lanesCarry reports whether more than 1 MiB was sent on the links of the lanes, which are all
// links but the first two, those of the session and of bulk.
func lanesCarry(network *simnet.Network) bool {
	carried := int64(0)
	for _, l := range network.Links() {
		if l.Number() > 1 {
			carried += l.Sent(simnet.Dialled).Bytes
		}
	}
	return carried > 1<<20
}

// readStriped reads and checks the messages of sendStriped, up to the one without metadata. It
// returns false if the pipe has failed before.
func (s *scenario) readStriped(t *testing.T, server *pipe.Pipe) bool {
	for isStriped(server) {
		in, err := server.Next(s.ctx)
		if !s.record(err) {
			return false
		}
		a := pipe.NewAllocation(in.Descriptor())
		if s.record(in.Read(s.ctx, a)) {
			m := message(9, nil, []int{1 << 20}, device.CPU())
			m.Metadata = in.Descriptor().Metadata
			same(t, m, in.Descriptor(), a)
		}
		if len(in.Descriptor().Metadata) == 0 {
			break
		}
	}
	return true
}

func isStriped(p *pipe.Pipe) bool {
	name, _ := p.Plan().Channel(device.CPU(), device.CPU())
	return name == mpt.UVName
}

// sendAborted sends three messages and records their errors: one that this end cancels, one whose
// Read the peer cancels, and a last one that the peer discards. Neither cancellation affects other
// messages.
func (s *scenario) sendAborted(client *pipe.Pipe) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	aborted, cancelled := message(5, nil, []int{100_000}), message(6, []int{150_000}, nil)
	op, unread := client.WriteAsync(ctx, aborted), client.WriteAsync(s.ctx, cancelled)
	cancel(errEnough)
	s.recordUnless(op.Wait(s.ctx), errEnough)
	overwrite(aborted)
	s.record(client.Write(s.ctx, message(7, nil, nil)))
	s.record(unread.Wait(s.ctx))
	overwrite(cancelled)
}

func (s *scenario) serve(t *testing.T, server *pipe.Pipe) {
	for _, m := range requests() {
		in, err := server.Next(s.ctx)
		if !s.record(err) {
			return
		}
		a := pipe.NewAllocation(in.Descriptor())
		if s.record(in.Read(s.ctx, a)) {
			same(t, m, in.Descriptor(), a)
		}
	}
	if !s.readStriped(t, server) {
		return
	}
	if server.Plan().Dialect == pipe.DialectNative && !s.readAborted(server) {
		return
	}
	s.record(server.Write(s.ctx, message(8, []int{50}, []int{60, 90_000})))
}

// readAborted receives the messages of sendAborted and treats each accordingly. It returns false if
// the pipe has failed before the last one.
func (s *scenario) readAborted(server *pipe.Pipe) bool {
	for {
		in, err := server.Next(s.ctx)
		if !s.record(err) {
			return false
		}
		ctx, cancel := context.WithCancelCause(s.ctx)
		switch a := pipe.NewAllocation(in.Descriptor()); string(in.Descriptor().Metadata) {
		case "metadata 5":
			s.recordUnless(in.Read(ctx, a), pipe.ErrAborted)
		case "metadata 6":
			var read sync.WaitGroup
			read.Go(func() { s.recordUnless(in.Read(ctx, a), errEnough) })
			cancel(errEnough)
			read.Wait()
			clear(a.Payloads[0])                                   // the race detector reports a later use
			s.recordUnless(in.Discard(s.ctx), pipe.ErrAlreadyRead) // if Read ended before it claimed the message
		default:
			cancel(nil)
			s.record(in.Discard(ctx))
			return true
		}
		cancel(nil)
	}
}

// recordUnless records err for check, unless it matches expected.
func (s *scenario) recordUnless(err, expected error) {
	if !errors.Is(err, expected) {
		s.record(err)
	}
}

// record stores err, the result of a call, for check, and reports whether it is nil.
func (s *scenario) record(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
	return err == nil
}

// check fails the test if a call has returned an error that a program need not expect after a
// fault. If faultless is true, any error fails the test.
func (s *scenario) check(t *testing.T, faultless bool) {
	t.Helper()
	for _, err := range s.errs {
		if err == nil {
			continue
		}
		require.False(t, faultless, "%v", err)
		var e *pipe.Error
		require.ErrorAs(t, err, &e)
		known := []error{errEnough, pipe.ErrPeerLost, pipe.ErrPeerClosed, pipe.ErrCancelled, pipe.ErrAborted, pipe.ErrHandshake, pipe.ErrCloseTimeout}
		require.True(t, isAny(err, known), "%T %v", e.Err, err)
	}
}

func isAny(err error, targets []error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
