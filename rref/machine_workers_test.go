package rref_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// machine is a group of workers that share references at random, and what a test knows about them.
type machine struct {
	ctx     context.Context
	log     func(...any) // of the test, since rapid prints the last failure and not the first one
	static  bool
	once    bool // functions served WithOnce are called
	store   store.Store
	network *simnet.Network
	weather *weather

	mu       sync.Mutex
	members  []*member            // the present incarnations, by number
	all      map[[16]byte]*member // all incarnations
	values   int                  // the last number that was given to a value
	pending  map[int]string       // operations under way
	ops      int
	failures []string
}

// member is one incarnation of a worker.
type member struct {
	*machine
	name   string
	a      *agent.Agent
	refs   *rref.Refs
	closed bool
	claims []*claim // references that the application on this worker has, guarded by machine.mu
}

// GoString returns the name, for the values that rapid prints.
func (b *member) GoString() string { return b.name }

// claim is a reference of a member. want is the value, or negative if its creation must fail.
type claim struct {
	f    *rref.Ref[int]
	at   *member
	want int
	born time.Time // before the reference existed
}

// isConfirmed reports whether the value of c exists, or its creation has failed.
func (c *claim) isConfirmed() bool { return c.f.IsConfirmed() && c.f.Created().IsDone() }

// sharedRef is a reference in a message. Born is when the call has begun that carries it.
type sharedRef struct {
	Ref  *rref.Ref[int]
	Want int
	Born time.Time
}

type (
	makeArgs struct {
		Value int
		Delay time.Duration
	}
	makeOnArgs struct {
		To   string
		Make makeArgs
	}
	relayArgs struct {
		Path   []string
		Shared sharedRef
	}
)

var (
	makeValue   = agent.NewFunc[makeArgs, int]("machine.make")
	keepAll     = agent.NewFunc[map[string][]sharedRef, agent.None]("machine.keep")
	fetchAll    = agent.NewFunc[map[string][]sharedRef, []int]("machine.fetch")
	take        = agent.NewFunc[uint64, sharedRef]("machine.take")
	takeOnce    = agent.NewFunc[uint64, sharedRef]("machine.takeOnce")
	makeAway    = agent.NewFunc[makeOnArgs, sharedRef]("machine.makeOn")
	makeOnce    = agent.NewFunc[makeOnArgs, sharedRef]("machine.makeOnOnce")
	relay       = agent.NewFunc[relayArgs, int]("machine.relay")
	forgetReply = agent.NewFunc[int, int]("machine.forgetReply")
	addTo       = rref.NewMethod[int, int, int]("Plus")

	errNotMade = errors.New("no value is made")
	errNone    = errors.New("the worker has no reference")
)

// derived is the least value that a method makes, and derivedFailure is what it makes of a value whose
// creation must fail.
const (
	derived        = 1e6
	derivedFailure = -2
)

// machineRemembered is the number of replies that a worker keeps for each other one.
const machineRemembered = 3

// join adds the member with that number, in place of an earlier one.
func (m *machine) join(number int) error {
	b := &member{machine: m, name: fmt.Sprint("worker", number)}
	o := rref.Options{Lease: machineLease, Methods: rref.Methods{
		addTo.Serve(func(v int, _ context.Context, n int) (int, error) { return v + n, nil }),
	}}
	b.refs = rref.New(o)
	c := agent.Config{
		Name: b.name, Rank: number, WorldSize: len(m.members), Store: m.store, Logger: slog.New(slog.DiscardHandler),
		Listen: []string{"mem://"}, Funcs: b.functions(), Extensions: []agent.Extension{b.refs}, Timeout: machineLease,
		FaultHook: m.weather.hook(b.name), Interceptors: []agent.Interceptor{{Received: m.weather.received}},
	}
	c.Limits.MaxRemembered = machineRemembered
	if !m.static {
		c.Rank, c.WorldSize = -1, 0
	}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: m.network}}
		o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
		return pipe.New(o)
	}
	a, err := agent.Join(m.ctx, c)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b.a = a
	m.members[number] = b
	m.all[a.Incarnation()] = b
	return nil
}

// startMachine joins n workers.
func startMachine(ctx context.Context, t *rapid.T, n int, static bool, seed uint64) *machine {
	m := &machine{
		ctx: ctx, static: static, store: store.NewMemory(store.Limits{}), network: simnet.New(mem.New(mem.NewNetwork())),
		weather: newWeather(seed), members: make([]*member, n), all: map[[16]byte]*member{}, pending: map[int]string{},
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = m.join(i) })
	}
	wg.Wait()
	require.Equal(t, make([]error, n), errs)
	return m
}

// close closes all members.
func (m *machine) close() {
	for _, b := range m.all {
		_ = b.a.Close() // of a test that has failed, or of a member that is closed already
	}
	_ = m.store.Close()
}

// functions returns the functions that the worker serves.
func (b *member) functions() agent.Funcs {
	return agent.Funcs{
		makeValue.ServeAsync(func(_ context.Context, args makeArgs) *agent.Future[int] {
			f := future.New[int]()
			time.AfterFunc(args.Delay, func() {
				if args.Value < 0 {
					_ = f.Fail(errNotMade)
					return
				}
				_ = f.Set(args.Value)
			})
			return f
		}),
		keepAll.Serve(func(_ context.Context, all map[string][]sharedRef) (agent.None, error) {
			for _, p := range all {
				for _, p := range p {
					b.claim(p.Ref, p.Want, p.Born)
				}
			}
			return agent.None{}, nil
		}),
		fetchAll.Serve(func(ctx context.Context, all map[string][]sharedRef) (values []int, err error) {
			for _, p := range all {
				for _, p := range p {
					v, failed := b.fetch(ctx, &claim{p.Ref, b, p.Want, p.Born})
					values, err = append(values, v), errors.Join(err, failed, p.Ref.Release(ctx))
				}
			}
			return values, err
		}),
		take.Serve(b.take),
		takeOnce.Serve(b.take, agent.WithOnce()),
		makeAway.Serve(b.makeAway),
		makeOnce.Serve(b.makeAway, agent.WithOnce()),
		forgetReply.Serve(func(context.Context, int) (int, error) { return 0, nil }, agent.WithOnce()),
		relay.Serve(func(ctx context.Context, args relayArgs) (int, error) {
			defer args.Shared.Ref.Release(ctx)
			if len(args.Path) == 0 {
				return b.fetch(ctx, &claim{args.Shared.Ref, b, args.Shared.Want, args.Shared.Born})
			}
			return relay.Call(ctx, agent.FromContext(ctx), agent.To(args.Path[0]), relayArgs{args.Path[1:], args.Shared})
		}),
	}
}

// take returns one of the references of the worker, which it keeps.
func (b *member) take(_ context.Context, n uint64) (sharedRef, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.claims) == 0 {
		return sharedRef{}, errNone
	}
	c := b.claims[n%uint64(len(b.claims))]
	return sharedRef{Ref: c.f, Want: c.want}, nil
}

// makeAway returns a reference to a new value, which the worker forgets.
func (b *member) makeAway(ctx context.Context, args makeOnArgs) (sharedRef, error) {
	f := rref.Remote(ctx, agent.FromContext(ctx), agent.To(args.To), makeValue, args.Make)
	return sharedRef{Ref: f, Want: args.Make.Value}, nil
}

// claim adds a reference to those of the worker.
func (b *member) claim(f *rref.Ref[int], want int, born time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims = append(b.claims, &claim{f, b, want, born})
}

// unclaim removes c, and reports whether it was there.
func (b *member) unclaim(c *claim) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.claims, c)
	if i >= 0 {
		b.claims = slices.Delete(b.claims, i, i+1)
	}
	return i >= 0
}

func (m *machine) failf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = append(m.failures, fmt.Sprintf(format, args...))
}

// fatal fails the test.
func (m *machine) fatal(t *rapid.T, text string) {
	m.log(text)
	t.Fatal(text)
}

// isSafe reports whether the owner of c must keep the value for it from now on as long as it is
// confirmed and nothing fails.
func (m *machine) isSafe(c *claim) bool {
	m.mu.Lock()
	owner := m.all[c.f.OwnerIncarnation()]
	alive := owner != nil && !owner.closed && !c.at.closed
	m.mu.Unlock()
	return alive && !m.weather.mayBeFenced(c.at.a.Incarnation(), owner.a.Incarnation(), c.born)
}

// check fails the test if an owner does not keep the value of a confirmed reference, or if an
// operation has failed it.
func (m *machine) check(t *rapid.T) {
	m.mu.Lock()
	var all []*claim
	for _, b := range m.members {
		all = append(all, b.claims...)
	}
	failures := m.failures
	m.mu.Unlock()
	if len(failures) > 0 {
		m.fatal(t, strings.Join(failures, "\n"))
	}
	for _, c := range all {
		if !m.isSafe(c) {
			continue
		}
		m.mu.Lock()
		owner := m.all[c.f.OwnerIncarnation()]
		m.mu.Unlock()
		confirmed, kept := rref.KeptFor(owner.refs, c.f)
		if confirmed && !kept {
			m.fatal(t, fmt.Sprintf("%s has dropped the value of %v, which %s has", owner.name, c.f, c.at.name))
		}
	}
}

// known are the errors that operations on references may have.
var known = []error{
	rref.ErrReleased, rref.ErrNoValue, rref.ErrCreation, rref.ErrFenced, rref.ErrOwnerGone, rref.ErrShared, rref.ErrClosed,
	agent.ErrTimeout, agent.ErrUnreachable, agent.ErrClosed, agent.ErrRestarted, agent.ErrNoWorker, agent.ErrCallerGone,
	agent.ErrEvicted, agent.ErrOverloaded, context.Canceled, errInjected,
}

// isKnown reports whether err is one of known, or one of the application.
func isKnown(err error) bool {
	if slices.ContainsFunc(known, func(k error) bool { return errors.Is(err, k) }) {
		return true
	}
	ofHandlers := []error{errNone, errNotMade, errInjected, rref.ErrReleased}
	return slices.ContainsFunc(ofHandlers, func(k error) bool { return strings.Contains(err.Error(), k.Error()) })
}

// fetch fetches the value of c, and checks it, or the error.
func (b *member) fetch(ctx context.Context, c *claim, opts ...agent.CallOption) (int, error) {
	before := c.isConfirmed() && b.isSafe(c)
	v, err := c.f.ToHere(ctx, opts...)
	b.judge(c, "fetch", v, c.want, err, before)
	return v, err
}

// judge checks the outcome of an operation about c that has the value want. before is whether c was
// confirmed, and nothing could have made it invalid, when the operation began.
func (b *member) judge(c *claim, op string, v, want int, err error, before bool) {
	switch {
	case err == nil && (c.want < 0 || v != want):
		b.failf("%s at %s of %v: %d, want %d", op, b.name, c.f, v, want)
	case err == nil || c.want < 0 && strings.Contains(err.Error(), errNotMade.Error()):
	case !isKnown(err):
		b.failf("%s at %s of %v: %v", op, b.name, c.f, err)
	case c.want >= derived || c.want == derivedFailure: // the error may be that of the method which has made the value
	case before && b.isSafe(c): // the value may have failed: ErrCreation, if its owner has created it
		for _, lost := range []error{rref.ErrNoValue, rref.ErrFenced, rref.ErrOwnerGone, rref.ErrShared} {
			if errors.Is(err, lost) {
				b.failf("%s at %s of %v, which was confirmed: %v", op, b.name, c.f, err)
			}
		}
	}
}
