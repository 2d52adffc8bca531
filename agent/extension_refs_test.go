package agent_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
)

// A toy of remote references with the exported API only. An owner keeps a value, users have its
// id. A reference in arguments or results is sent as its id; the receiver notifies the owner, and
// a handler runs only after the owner has confirmed.

var (
	errNoRef = errors.New("no such reference")

	makeRef   = agent.NewMessageType[int, uint64]("toyref.make")
	fetchRef  = agent.NewMessageType[uint64, int]("toyref.fetch")
	forkRef   = agent.NewMessageType[uint64, agent.None]("toyref.fork")
	deleteRef = agent.NewMessageType[uint64, agent.None]("toyref.delete")
)

// toyRef is a reference to an int.
type toyRef struct {
	owner string
	id    uint64
}

// toyRefs is the references of one worker, as owner and as user.
type toyRefs struct {
	agent *agent.Agent

	mu     sync.Mutex
	values map[uint64]int
	users  map[uint64]map[string]int // of values, by name
	last   uint64
}

func newToyRefs() *toyRefs {
	return &toyRefs{values: map[uint64]int{}, users: map[uint64]map[string]int{}}
}

// install sets the handlers, the interceptor and the registry of c so that the worker can own and
// use references. The caller must set t.agent after the worker has joined.
func (t *toyRefs) install(c *agent.Config) error {
	c.Handlers = map[string]agent.Handler{
		makeRef.Type():   toyHandler[int, uint64](t.create),
		fetchRef.Type():  toyHandler[uint64, int](t.fetched),
		forkRef.Type():   toyHandler[uint64, agent.None](t.forked),
		deleteRef.Type(): toyHandler[uint64, agent.None](t.deleted),
	}
	c.Interceptors = append(c.Interceptors, agent.Interceptor{Decoded: t.arrived})
	c.Registry = codec.NewRegistry()
	return codec.Hook(c.Registry, "toyref", t.encode, t.decode)
}

// toyHandler serves a message type by a function that does not block.
type toyHandler[A, R any] func(from string, args A) (R, error)

type toyTask[A, R any] struct {
	handler toyHandler[A, R]
	args    A
}

func (h toyHandler[A, R]) Open(r *agent.Request) (agent.Task, error) {
	t := &toyTask[A, R]{handler: h}
	return t, r.Decode(&t.args)
}

func (toyHandler[A, R]) Short() {}

func (t *toyTask[A, R]) Run(_ context.Context, r *agent.Request) {
	result, err := t.handler(r.From().Name, t.args)
	if err != nil {
		_ = r.Fail(err)
		return
	}
	_ = r.Reply(&result)
}

func (t *toyRefs) create(from string, value int) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.values[t.last], t.users[t.last] = value, map[string]int{from: 1}
	return t.last, nil
}

func (t *toyRefs) fetched(_ string, id uint64) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok := t.values[id]
	if !ok {
		return 0, fmt.Errorf("%w: %d", errNoRef, id)
	}
	return value, nil
}

func (t *toyRefs) forked(from string, id uint64) (agent.None, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users[id] == nil {
		return agent.None{}, fmt.Errorf("%w: %d", errNoRef, id)
	}
	t.users[id][from]++
	return agent.None{}, nil
}

func (t *toyRefs) deleted(from string, id uint64) (agent.None, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users[id][from]--; t.users[id][from] <= 0 {
		delete(t.users[id], from)
	}
	if len(t.users[id]) == 0 {
		delete(t.users, id)
		delete(t.values, id)
	}
	return agent.None{}, nil
}

func (t *toyRefs) kept() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.values)
}

// arrivedKey is the key of the references in a message, from the hook to the interceptor.
type arrivedKey struct{}

func (t *toyRefs) encode(e *codec.Encoder, ref **toyRef) error {
	e.WriteString((*ref).owner)
	e.WriteUint((*ref).id)
	return nil
}

func (t *toyRefs) decode(d *codec.Decoder, ref **toyRef) (err error) {
	*ref = &toyRef{}
	if (*ref).owner, err = d.ReadString(); err != nil {
		return err
	}
	if (*ref).id, err = d.ReadUint(); err != nil {
		return err
	}
	refs, _ := d.State(arrivedKey{}).([]*toyRef)
	d.SetState(arrivedKey{}, append(refs, *ref))
	return nil
}

// arrived is the Decoded function of the interceptor. It notifies the owners of the references in
// the message m. The handler of a request starts only when the owners have confirmed, and does not
// run if one of them fails; a result is delivered without waiting.
func (t *toyRefs) arrived(ctx context.Context, m *agent.Message) error {
	refs, _ := m.State(arrivedKey{}).([]*toyRef)
	var futures []*agent.Future[agent.None]
	for _, ref := range refs {
		futures = append(futures, forkRef.Go(context.WithoutCancel(ctx), t.agent, agent.To(ref.owner), "", ref.id))
	}
	if m.Kind == agent.KindRequest && len(futures) > 0 {
		m.Hold(func(ctx context.Context) error {
			for _, f := range futures {
				if _, err := f.Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return nil
}

// remote creates value on the worker owner and returns a reference to it. If the error is not nil
// the reference is not valid.
func (t *toyRefs) remote(ctx context.Context, owner string, value int) (*toyRef, error) {
	id, err := makeRef.Call(ctx, t.agent, agent.To(owner), "", value)
	return &toyRef{owner, id}, err
}

func (t *toyRefs) fetch(ctx context.Context, r *toyRef) (int, error) {
	return fetchRef.Call(ctx, t.agent, agent.To(r.owner), "", r.id)
}

func (t *toyRefs) drop(ctx context.Context, r *toyRef) error {
	_, err := deleteRef.Call(ctx, t.agent, agent.To(r.owner), "", r.id)
	return err
}

// toyArgs has nested references.
type toyArgs struct {
	Deep  map[string][]*toyRef
	Extra int
}

var (
	useRefs = agent.NewFunc[toyArgs, int]("toyref.use")
	passRef = agent.NewFunc[*toyRef, *toyRef]("toyref.pass")
)

// use returns the sum of args.Extra and of the referenced values, each as often as its reference
// occurs, and then drops each reference once.
func (t *toyRefs) use(ctx context.Context, args toyArgs) (int, error) {
	sum, dropped := args.Extra, map[*toyRef]bool{}
	for _, ref := range slices.Concat(slices.Collect(maps.Values(args.Deep))...) {
		v, err := t.fetch(ctx, ref)
		if err != nil {
			return 0, err
		}
		sum += v
		dropped[ref] = true
	}
	for ref := range dropped {
		if err := t.drop(ctx, ref); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// startToyRefs runs test with n workers that can own and use references and run one handler at a
// time, in a bubble of testing/synctest. Messages that notify an owner of a new user are delayed by
// late.
func startToyRefs(t *testing.T, n int, late time.Duration, test func(t *testing.T, refs []*toyRefs)) {
	all := make([]*toyRefs, n)
	faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{{Types: []string{forkRef.Type()}, Do: faulty.Delay(late)}}})
	require.NoError(t, err)
	configure := func(rank int, c *agent.Config) {
		all[rank] = newToyRefs()
		require.NoError(t, all[rank].install(c))
		c.MaxHandlers, c.FaultHook = 1, faults.Inject
		use := func(ctx context.Context, args toyArgs) (int, error) {
			return all[rank].use(ctx, args)
		}
		pass := func(_ context.Context, ref *toyRef) (*toyRef, error) { return ref, nil }
		c.Funcs = agent.Funcs{useRefs.Serve(use), passRef.Serve(pass), echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })}
	}
	simulate(t, n, configure, func(t *testing.T, group []*agent.Agent) {
		for rank, a := range group {
			all[rank].agent = a
		}
		test(t, all)
	})
}

func TestToyRef(t *testing.T) {
	startToyRefs(t, 3, 0, func(t *testing.T, refs []*toyRefs) {
		ctx := t.Context()
		owner := refs[1]
		for _, user := range refs { // the owner itself too
			ref, err := user.remote(ctx, "worker1", 42)
			require.NoError(t, err)
			v, err := user.fetch(ctx, ref)
			require.NoError(t, err)
			require.Equal(t, 42, v)

			// As arguments to a third worker, to the owner and to the user itself.
			for _, to := range []agent.To{"worker2", "worker1", user.agent.Self().To()} {
				args := toyArgs{Deep: map[string][]*toyRef{"a": {ref}, "b": {ref, ref}}, Extra: 1}
				sum, err := useRefs.Call(ctx, user.agent, to, args)
				require.NoError(t, err)
				require.Equal(t, 1+3*42, sum)
			}
			// As a result.
			back, err := passRef.Call(ctx, user.agent, "worker2", ref)
			require.NoError(t, err)
			require.Equal(t, ref, back)
			require.NotSame(t, ref, back)
			synctest.Wait()
			require.Equal(t, 1, owner.kept())
			for _, r := range []*toyRef{ref, back} {
				require.NoError(t, user.drop(ctx, r))
			}
			require.NoError(t, refs[2].drop(ctx, ref), "the reference that worker2 received")
			require.Zero(t, owner.kept())
			_, err = user.fetch(ctx, ref)
			require.ErrorContains(t, err, "no such reference")
		}
	})
}

// A request that is held until its references are confirmed occupies no handler slot, and messages
// are still read. If the references cannot be confirmed, the call fails and the handler does not
// run.
func TestToyRefHeld(t *testing.T) {
	startToyRefs(t, 3, 5*time.Second, func(t *testing.T, refs []*toyRefs) {
		ctx := t.Context()
		ref, err := refs[0].remote(ctx, "worker1", 7)
		require.NoError(t, err)
		used := useRefs.Go(ctx, refs[0].agent, "worker2", toyArgs{Deep: map[string][]*toyRef{"": {ref}}})
		synctest.Wait()
		served := refs[2].agent.Snapshot().Served
		require.Len(t, served, 1)
		require.Equal(t, agent.ServedHeld, served[0].State)
		begun := time.Now()
		n, err := echo.Call(ctx, refs[0].agent, "worker2", 5)
		require.NoError(t, err)
		require.Zero(t, time.Since(begun), "the only slot is free, and messages are read")
		require.Equal(t, 5, n)
		require.False(t, used.IsDone())
		sum, err := used.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, 7, sum)

		require.NoError(t, refs[0].drop(ctx, ref))
		_, err = useRefs.Call(ctx, refs[0].agent, "worker2", toyArgs{Deep: map[string][]*toyRef{"": {ref}}})
		require.ErrorContains(t, err, "no such reference")
	})
}
