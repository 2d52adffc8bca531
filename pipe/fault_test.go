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
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// The life of a pipe, with messages of every form both ways, is repeated with a
// fault at each frame boundary and within each frame of each connection. Where
// a connection has no frames, each write counts as one.
func TestFaultAtEveryFrame(t *testing.T) {
	for _, dialect := range []string{pipe.DialectCompatible, pipe.DialectNative} {
		for name, factory := range map[string]channel.Factory{"basic": basic.New(), "xth": xth.New()} {
			overMem := func() way { return way{mem.New(mem.NewNetwork()), "faulty", plain(factory), dialect} }
			overUV := func() way { return way{uv.New(), "127.0.0.1:0", plain(factory), dialect} }
			with := name + "+" + dialect

			// Every call must end by itself after a cut.
			t.Run("cut over mem+"+with, func(t *testing.T) {
				eachPoint(t, runLife(t, overMem, nil), 5, func(t *testing.T, at simnet.Point) {
					synctest.Test(t, func(t *testing.T) { runLife(t, overMem, nil, simnet.CutAt(at)) })
				})
			})
			t.Run("cut over uv+"+with, func(t *testing.T) {
				eachPoint(t, runLife(t, overUV, nil), 5, func(t *testing.T, at simnet.Point) {
					t.Parallel() // where bulk breaks alone, both ends wait a while for the other's reason
					runLife(t, overUV, nil, simnet.CutAt(at))
				})
			})
			// On a link that swallows everything, calls end when they are cancelled.
			t.Run("cancelled over mem+"+with, func(t *testing.T) {
				eachPoint(t, runLife(t, overMem, nil), 5, func(t *testing.T, at simnet.Point) {
					synctest.Test(t, func(t *testing.T) { runLife(t, overMem, synctest.Wait, simnet.HalfOpenAt(at)) })
				})
			})
		}
	}
}

// The same with lanes, which have tensors of their own.
func TestFaultAtEveryFrameOfLanes(t *testing.T) {
	over := func() way { return way{mem.New(mem.NewNetwork()), "faulty", striped, pipe.DialectNative} }
	var whole *simnet.Network
	synctest.Test(t, func(t *testing.T) { whole = runLife(t, over, nil) })
	require.True(t, lanesCarry(whole))
	t.Run("cut", func(t *testing.T) {
		eachPoint(t, whole, 15, func(t *testing.T, at simnet.Point) {
			synctest.Test(t, func(t *testing.T) { runLife(t, over, nil, simnet.CutAt(at)) })
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		eachPoint(t, whole, 15, func(t *testing.T, at simnet.Point) {
			synctest.Test(t, func(t *testing.T) { runLife(t, over, synctest.Wait, simnet.HalfOpenAt(at)) })
		})
	})
}

// On slow links a life takes long, and is no other.
func TestSlowLinks(t *testing.T) {
	for _, dialect := range []string{pipe.DialectCompatible, pipe.DialectNative} {
		for name, rules := range map[string][]simnet.Rule{
			"delay":          {simnet.Delay(300 * time.Millisecond)},
			"rate":           {simnet.Rate(256 << 10)},
			"delay and rate": {simnet.Delay(40 * time.Millisecond), simnet.Rate(2 << 20), simnet.Jitter(1, 10*time.Millisecond)},
		} {
			t.Run(name+" "+dialect, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					over := func() way { return way{mem.New(mem.NewNetwork()), "slow", plain(basic.New()), dialect} }
					l, _ := live(t, over, nil, rules...)
					l.check(t, true)
				})
			})
		}
	}
}

// way is what a life runs over.
type way struct {
	transport transport.Transport
	addr      string
	channel   func(transport.Transport) channel.Factory
	dialect   string
}

// plain is a channel without connections of its own.
func plain(f channel.Factory) func(transport.Transport) channel.Factory {
	return func(transport.Transport) channel.Factory { return f }
}

// lanes is how many a striped channel has.
const lanes = 2

func striped(t transport.Transport) channel.Factory {
	return mpt.New(mpt.Lanes{Count: lanes, Transport: t})
}

// eachPoint counts the frames of an undisturbed life and calls f for each place
// in them, or for every so manieth under the race detector. Where packets are put
// together as it happens, no two lives have the same number of them, and a point
// behind the end is none.
func eachPoint(t *testing.T, undisturbed *simnet.Network, every int, f func(t *testing.T, at simnet.Point)) {
	points := pointsOf(undisturbed)
	require.Greater(t, len(points), 30)
	taken := 0
	for i, p := range points {
		if race.Takes(i, len(points), every) {
			taken++
			t.Run(p.name, func(t *testing.T) { f(t, p.at) })
		}
	}
	t.Logf("%d of %d points", taken, len(points))
}

// point is a place in the frames of a life.
type point struct {
	name string
	at   simnet.Point
}

// pointsOf lists those before and within each frame, by turns.
func pointsOf(network *simnet.Network) (all []point) {
	for _, l := range network.Links() {
		for _, end := range []simnet.End{simnet.Dialled, simnet.Accepted} {
			for n := range l.Sent(end).Frames {
				name := func(place string) string {
					return fmt.Sprintf("link %d end %d %s frame %d", l.Number(), end, place, n)
				}
				all = append(all,
					point{name("before"), simnet.AfterFrames(l.Number(), end, n)},
					point{name("within"), simnet.WithinFrame(l.Number(), end, n, 3)})
			}
		}
	}
	return all
}

// life is one run: two contexts, a pipe between them, and what its calls
// returned.
type life struct {
	ctx            context.Context
	client, server *pipe.Context
	network        *simnet.Network
	undisturbed    bool
	mu             sync.Mutex
	errs           []error
}

// runLife runs a life to its end on a network with rules, and looks at what its
// calls returned. With settle, calls are cancelled once everything has come to a
// halt.
func runLife(t *testing.T, over func() way, settle func(), rules ...simnet.Rule) *simnet.Network {
	l, network := live(t, over, settle, rules...)
	l.check(t, l.undisturbed)
	return network
}

func live(t *testing.T, over func() way, settle func(), rules ...simnet.Rule) (*life, *simnet.Network) {
	way := over()
	network := simnet.New(way.transport, rules...)
	options := func() pipe.Options {
		factory := way.channel(network)
		name := "tensors"
		if _, ok := factory.(*mpt.Factory); ok {
			name = mpt.UVName
		}
		o := pipe.Options{
			Dialect:    way.dialect,
			Transports: []pipe.TransportEntry{{Name: "sim", Transport: network}},
			Channels:   []pipe.ChannelEntry{{Name: name, Factory: factory}},
		}
		if len(rules) == 0 {
			unhurried(&o) // else both ends of what breaks would wait for so long
		}
		return o
	}
	ctx, cancel := context.WithCancelCause(testContext(t))
	l := &life{ctx: ctx, network: network, undisturbed: len(rules) == 0}
	var err error
	l.client, err = pipe.New(options())
	require.NoError(t, err)
	l.server, err = pipe.New(options())
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(t, "sim://"+way.addr)
	}()
	if settle != nil {
		settle()
		cancel(errEnough)
	}
	<-done
	for _, c := range []*pipe.Context{l.client, l.server} {
		if err := c.Close(); err != nil {
			l.ok(err)
		}
	}
	cancel(nil)
	return l, network
}

func (l *life) run(t *testing.T, url string) {
	listener, err := l.server.Listen(l.ctx, url)
	require.NoError(t, err)
	ctx, failed := context.WithCancelCause(l.ctx)
	defer failed(nil)
	accepted := make(chan struct{})
	var talk sync.WaitGroup
	defer talk.Wait()
	talk.Go(func() {
		client, err := l.client.Dial(ctx, listener.URLs()[0])
		if !l.ok(err) {
			failed(errEnough) // or Accept would wait for a pipe that never comes
			return
		}
		// The other end may yet fail to open the pipe.
		talk.Go(func() {
			select {
			case <-client.Done():
				failed(errEnough)
			case <-accepted:
			}
		})
		l.ask(client)
	})
	server, err := listener.Accept(ctx)
	close(accepted)
	if l.ok(err) {
		l.answer(t, server)
	}
}

// questions have every form of message; the second and the third do not fit
// what is read ahead.
func questions() []*pipe.Message {
	return []*pipe.Message{
		message(1, []int{100}, []int{1000}),
		message(2, []int{300_000}, []int{200_000, 10}, device.CPU(), device.Device{}),
		message(3, nil, []int{70_000, 80_000}, device.Device{}, device.CPU()),
		message(4, nil, nil),
		ofData(append(garbage(90_000), make([]byte, 90_000)...), pipe.CompressionS2, device.CPU()),
	}
}

func (l *life) ask(client *pipe.Pipe) {
	var ops []*pipe.WriteOp
	sent := questions()
	for _, m := range sent {
		ops = append(ops, client.WriteAsync(l.ctx, m))
	}
	l.stripe(client)
	if client.Plan().Dialect == pipe.DialectNative {
		l.waver(client)
	}
	if in, err := client.Next(l.ctx); l.ok(err) {
		l.ok(in.Read(l.ctx, pipe.NewAllocation(in.Descriptor())))
	}
	for i, op := range ops {
		l.ok(op.Wait(l.ctx))
		scribble(sent[i]) // nobody may touch it any more
	}
}

// stripe sends tensors that are worth the lanes, where there can be any, until those
// carry them. An undisturbed life is one in virtual time then: whatever opens lanes is
// through before another tensor leaves.
func (l *life) stripe(client *pipe.Pipe) {
	if !isStriped(client) {
		return
	}
	const most = 20 // or lanes that are cut would be waited for
	for i := range most {
		m := message(9, nil, []int{1 << 20}, device.CPU())
		last := i == most-1 || lanesCarry(l.network)
		if last {
			m.Metadata = nil
		}
		if !l.ok(client.Write(l.ctx, m)) || last {
			return
		}
		if l.undisturbed {
			synctest.Wait()
		}
	}
}

// lanesCarry reports whether a tensor has gone over the connections behind that of
// the session and the one for bulk.
func lanesCarry(network *simnet.Network) bool {
	carried := int64(0)
	for _, l := range network.Links() {
		if l.Number() > 1 {
			carried += l.Sent(simnet.Dialled).Bytes
		}
	}
	return carried > 1<<20
}

// takeStripes takes them.
func (l *life) takeStripes(t *testing.T, server *pipe.Pipe) bool {
	for isStriped(server) {
		in, err := server.Next(l.ctx)
		if !l.ok(err) {
			return false
		}
		a := pipe.NewAllocation(in.Descriptor())
		if l.ok(in.Read(l.ctx, a)) {
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

// waver sends messages that this end or the other gives up, which is nothing to
// the others, and last one that is wanted.
func (l *life) waver(client *pipe.Pipe) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	regretted, cancelled := message(5, nil, []int{100_000}), message(6, []int{150_000}, nil)
	op, unread := client.WriteAsync(ctx, regretted), client.WriteAsync(l.ctx, cancelled)
	cancel(errEnough)
	l.unless(op.Wait(l.ctx), errEnough)
	scribble(regretted)
	l.ok(client.Write(l.ctx, message(7, nil, nil)))
	l.ok(unread.Wait(l.ctx))
	scribble(cancelled)
}

func (l *life) answer(t *testing.T, server *pipe.Pipe) {
	for _, m := range questions() {
		in, err := server.Next(l.ctx)
		if !l.ok(err) {
			return
		}
		a := pipe.NewAllocation(in.Descriptor())
		if l.ok(in.Read(l.ctx, a)) {
			same(t, m, in.Descriptor(), a)
		}
	}
	if !l.takeStripes(t, server) {
		return
	}
	if server.Plan().Dialect == pipe.DialectNative && !l.endure(server) {
		return
	}
	l.ok(server.Write(l.ctx, message(8, []int{50}, []int{60, 90_000})))
}

// endure takes what the other end sends in waver.
func (l *life) endure(server *pipe.Pipe) bool {
	for {
		in, err := server.Next(l.ctx)
		if !l.ok(err) {
			return false
		}
		ctx, cancel := context.WithCancelCause(l.ctx)
		switch a := pipe.NewAllocation(in.Descriptor()); string(in.Descriptor().Metadata) {
		case "metadata 5":
			l.unless(in.Read(ctx, a), pipe.ErrAborted)
		case "metadata 6":
			var read sync.WaitGroup
			read.Go(func() { l.unless(in.Read(ctx, a), errEnough) })
			cancel(errEnough)
			read.Wait()
			clear(a.Payloads[0])                             // nobody may touch it any more
			l.unless(in.Discard(l.ctx), pipe.ErrAlreadyRead) // if Read was too late to begin
		default:
			cancel(nil)
			l.ok(in.Discard(ctx))
			return true
		}
		cancel(nil)
	}
}

// unless notes what a call returned that may fail for a reason of its own.
func (l *life) unless(err, reason error) {
	if !errors.Is(err, reason) {
		l.ok(err)
	}
}

// ok notes what a call returned.
func (l *life) ok(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
	return err == nil
}

// check looks at what the calls returned: a fault may fail any of them, in a
// way that programs can tell.
func (l *life) check(t *testing.T, undisturbed bool) {
	t.Helper()
	for _, err := range l.errs {
		if err == nil {
			continue
		}
		require.False(t, undisturbed, "%v", err)
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
