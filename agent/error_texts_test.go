package agent_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testcert"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// The texts of errors that a user sees: one line, which names the operation, the function and the
// worker once, and then the cause.

// errorText is an error and the text that it must have, with ADDR for the address of a worker.
type errorText struct {
	err  error
	text string
}

// address matches an address of a worker of a test.
var address = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)

func (e errorText) check(t *testing.T, name string) {
	t.Helper()
	require.Error(t, e.err, name)
	require.Equal(t, e.text, address.ReplaceAllString(e.err.Error(), "ADDR"), name)
}

var (
	textFails   = agent.NewFunc[string, agent.None]("test.fail")
	textBlocks  = agent.NewFunc[agent.None, agent.None]("test.block")
	textDoubles = agent.NewFunc[int, int]("test.double")
	textCounts  = agent.NewServerStream[int, int]("test.count")
	textNested  = agent.NewFunc[agent.None, agent.None]("test.nested")
)

// serveTexts makes a worker listen over TCP and serve functions, most of which fail.
func serveTexts(rank int, c *agent.Config) {
	c.Listen = []string{"uv://127.0.0.1"}
	c.Funcs = agent.Funcs{
		textFails.Serve(func(_ context.Context, text string) (agent.None, error) {
			if text == "panic" {
				panic("bug")
			}
			return agent.None{}, errors.New(text)
		}),
		textBlocks.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			<-ctx.Done()
			return agent.None{}, ctx.Err()
		}),
		textDoubles.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		textCounts.Serve(func(_ context.Context, n int, out *agent.SendStream[int]) error {
			return errors.New("no more")
		}),
		textNested.Serve(func(context.Context, agent.None) (agent.None, error) {
			return agent.None{}, &agent.Error{Op: "call", Func: "test.other", Worker: "worker7", Err: agent.ErrUnreachable}
		}),
		agent.ReflectFunc("test.add", func(x, y int) int { return x + y }),
	}
}

func TestErrorTextsOfCalls(t *testing.T) {
	group := startGroup(t, 2, serveTexts)
	a, none := group[0], agent.None{}
	call := func(to agent.To, text string) error {
		_, err := textFails.Call(t.Context(), a, to, text)
		return err
	}
	block := func(opts ...agent.CallOption) error {
		_, err := textBlocks.Call(t.Context(), a, "worker1", none, opts...)
		return err
	}
	invoke := func(args ...any) error {
		_, err := a.Invoke(t.Context(), "worker1", "test.add", args...)
		return err
	}
	stream := func(name string) error {
		_, err := collect(agent.NewServerStream[int, int](name).Call(t.Context(), a, "worker1", 1))
		return err
	}
	_, noFunction := agent.NewFunc[int, int]("test.none").Call(t.Context(), a, "worker1", 1)
	_, argument := agent.NewFunc[string, int]("test.double").Call(t.Context(), a, "worker1", "x")
	_, result := agent.NewFunc[int, string]("test.double").Call(t.Context(), a, "worker1", 1)
	_, nested := textNested.Call(t.Context(), a, "worker1", none)
	_, unknown := a.Worker(t.Context(), "worker9")
	limit, negative := agent.WithTimeout(10*time.Millisecond), agent.WithTimeout(-1)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, canceled := textBlocks.Call(cancelled, a, "worker1", none)

	const blocked = "agent: call test.block on worker1: "
	for name, c := range map[string]errorText{
		"handler":         {call("worker1", "out of memory"), "agent: call test.fail on worker1: out of memory"},
		"panic":           {call("worker1", "panic"), "agent: call test.fail on worker1: panic in handler: bug"},
		"nested":          {nested, "agent: call test.nested on worker1: call test.other on worker7: unreachable"},
		"no worker":       {call("worker9", ""), "agent: call test.fail on worker9: no such worker in the group of worker0 (rank 0)"},
		"no rank":         {call(agent.Rank(9), ""), "agent: call test.fail on rank 9: no such worker in the group of worker0 (rank 0)"},
		"look-up":         {unknown, "agent: worker worker9: no such worker in the group of worker0 (rank 0)"},
		"no function":     {noFunction, "agent: call test.none on worker1: not served: no function of that name"},
		"no stream":       {stream("test.none"), "agent: call test.none on worker1: not served: no server stream of that name"},
		"end of stream":   {stream("test.count"), "agent: call test.count on worker1: no more"},
		"argument":        {argument, "agent: call test.double on worker1: wrong arguments: codec: int: type does not fit: the message has string, want int"},
		"result":          {result, "agent: call test.double on worker1: wrong result: codec: string: type does not fit: the message has int, want string"},
		"invoke":          {invoke(1, "two"), "agent: call test.add on worker1: wrong arguments: the function takes (int, int): argument 1 is string, want int"},
		"invoke with few": {invoke(1), "agent: call test.add on worker1: wrong arguments: the function takes (int, int), got (int)"},
		"limit":           {block(limit), blocked + "no reply within the call's limit of 10ms"},
		"retries":         {block(limit, agent.WithRetry(agent.Retry{Max: 1, Delay: 1})), blocked + "no success in 2 attempts: no reply within the call's limit of 10ms"},
		"cancelled":       {canceled, blocked + "context canceled"},
		"option":          {block(negative), blocked + "wrong configuration: Timeout is -1ns, and must be at least 0"},
		"options": {block(negative, agent.WithIdempotencyKey("")),
			blocked + "wrong configuration: Timeout is -1ns, and must be at least 0; wrong configuration: a key of 0 bytes"},
		"barrier without itself": {a.Barrier(t.Context(), "worker1"), "agent: barrier: wrong configuration: worker0 (rank 0) is not among the workers"},
		"barrier of unknown":     {a.Barrier(t.Context(), "worker9"), "agent: barrier on worker9: no such worker in the group of worker0 (rank 0)"},
	} {
		c.check(t, name)
	}
	require.ErrorIs(t, argument, codec.ErrType)
	require.ErrorIs(t, call("worker9", ""), agent.ErrNoWorker)
	require.NoError(t, a.Close())
	errorText{call("worker1", ""), "agent: call test.fail on worker1: agent closed"}.check(t, "closed")
	errorText{a.Shutdown(t.Context()), "agent: shutdown: agent closed"}.check(t, "shutdown")
}

// The error of a call to a worker that no pipe reaches has its address once.
func TestErrorTextsOfPipes(t *testing.T) {
	start := func(edit func(rank int, c *agent.Config)) (*agent.Agent, *agent.Agent) {
		group := startGroup(t, 2, func(rank int, c *agent.Config) { serveTexts(rank, c); edit(rank, c) })
		return group[0], group[1]
	}
	const failed = "agent: call test.double on worker1: unreachable: "
	one, gone := start(func(int, *agent.Config) {})
	require.NoError(t, gone.Close())
	_, err := textDoubles.Call(t.Context(), one, "worker1", 1)
	errorText{err, failed + "pipe: dial uv://ADDR: connection refused"}.check(t, "worker that left")
	var dial *uv.DialError
	require.ErrorAs(t, err, &dial)
	var ofPipe *pipe.Error
	require.ErrorAs(t, err, &ofPipe)
	_, err = textDoubles.Call(t.Context(), one, "worker1", 1, agent.WithRetry(agent.Retry{Max: 1, Delay: 1}))
	errorText{err, "agent: call test.double on worker1: no success in 2 attempts: unreachable: pipe: dial uv://ADDR: connection refused"}.check(t, "retried")
	errorText{one.Barrier(t.Context()), "agent: barrier on worker1: unreachable: pipe: dial uv://ADDR: connection refused"}.check(t, "barrier")

	guess, _ := start(func(rank int, c *agent.Config) { c.Token = []byte([]string{"guess", "secret"}[rank]) })
	_, err = textDoubles.Call(t.Context(), guess, "worker1", 1)
	errorText{err, failed + "refused: the worker does not know the token of the group"}.check(t, "token")

	untrusted, _ := start(func(_ int, c *agent.Config) { c.TLS = testcert.New(t) })
	_, err = textDoubles.Call(t.Context(), untrusted, "worker1", 1)
	require.Regexp(t, `^`+failed+`pipe: dial uv://127\.0\.0\.1:[0-9]+: TLS handshake: tls: failed to verify certificate: x509: [^\n]*$`, err.Error())
}

// The error of a call in progress to a worker that is killed names the connection that broke.
func TestErrorTextOfKilledWorker(t *testing.T) {
	group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
		a, err := joinMember(m, func(c *agent.Config) { serveStuck(m)(c); c.Listen = []string{"uv://127.0.0.1"} })
		if err != nil || m.Rank == 1 {
			return errors.Join(err, m.WaitFor("never"))
		}
		ctx, cancel := context.WithTimeout(m.Context(), maxDeathDelay)
		defer cancel()
		_, err = stuck.Call(ctx, a, "worker1", "now", agent.WithTimeout(0))
		m.Send(err.Error())
		return a.Close()
	})
	group.ReadLine(1)
	group.Kill(1)
	require.Regexp(t, `^agent: call test\.stuck on worker1: unreachable: pipe: next 127\.0\.0\.1:[0-9]+ \([a-z ]+ connection\): lost the peer: [a-z ]+$`, group.ReadLine(0))
	require.NoError(t, group.WaitExit(0))
}

// The error of Join says what is missing, and the deadline that passed, once.
func TestErrorTextsOfJoin(t *testing.T) {
	s := memoryStore(t)
	nowhere := "tcp://" + freeport.Addr(t)
	var limit time.Duration
	join := func(edit func(c *agent.Config), timeout bool) error {
		c := member(s, 1, 2)
		c.Name = "w"
		edit(&c)
		ctx, cancel := context.WithCancel(t.Context())
		if timeout && c.JoinTimeout == 0 { // only one of the two limits may pass
			ctx, cancel = context.WithTimeout(t.Context(), limit)
		}
		defer cancel()
		a, err := agent.Join(ctx, c)
		require.Nil(t, a)
		return err
	}
	noStore := func(c *agent.Config) { c.Store, c.Rendezvous, c.Listen = nil, nowhere, []string{"uv://127.0.0.1"} }
	for name, c := range map[string]struct {
		edit    func(c *agent.Config)
		text    string
		timeout bool
	}{
		"alone": {func(*agent.Config) {}, `group "default": rank 0 of 2 has not joined: context deadline exceeded`, true},
		"alone, limit": {func(c *agent.Config) { c.JoinTimeout = limit },
			`group "default": rank 0 of 2 has not joined: JoinTimeout of LIMIT exceeded`, true},
		"no store": {noStore, `store: open "` + nowhere + `": context deadline exceeded: connection refused`, true},
		"no store, limit": {func(c *agent.Config) { noStore(c); c.JoinTimeout = limit },
			`store: open "` + nowhere + `": JoinTimeout of LIMIT exceeded: connection refused`, true},
		"rank":   {func(c *agent.Config) { c.Rank = 2 }, `group "default": world size does not fit: rank 2 in a group of 2`, false},
		"scheme": {func(c *agent.Config) { c.Store, c.Rendezvous = nil, "foo://x" }, `store: open "foo://x": bad url: foo:// is none of tcp, env, file and mem`, false},
	} {
		var text string
		var err error
		// On a busy machine a short time may pass before Join waits for the other worker or for the store.
		for limit = 100 * time.Millisecond; limit < 5*time.Second; limit *= 2 {
			text = "agent: join as w: " + strings.ReplaceAll(c.text, "LIMIT", limit.String())
			if err = join(c.edit, c.timeout); !c.timeout || err.Error() == text {
				break
			}
		}
		require.EqualError(t, err, text, name)
		require.Equal(t, c.timeout, errors.Is(err, agent.ErrTimeout), name)
		require.Equal(t, c.timeout, errors.Is(err, context.DeadlineExceeded), name)
	}
}
