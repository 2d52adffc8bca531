package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// failWith returns the error of failures with that name, or panics with the name.
var failWith = agent.NewFunc[string, agent.None]("test.failWith")

type codeError struct {
	Code int
	Why  string
}

func (e *codeError) Error() string { return fmt.Sprintf("code %d: %s", e.Code, e.Why) }

// hollowError panics in Error if it is a nil pointer.
type hollowError struct{ text string }

func (e *hollowError) Error() string { return e.text }

// burstError panics when it is encoded.
type burstError struct{ N int }

func (e *burstError) Error() string                  { return "burst" }
func (e *burstError) MarshalBinary() ([]byte, error) { panic("in MarshalBinary") }
func (e *burstError) UnmarshalBinary([]byte) error   { return nil }

var errQuota = errors.New("out of quota")

const verbatim = "line one\nline \"two\"\t\\n 'ümläut' 漢字 \x00%s"

func failures() map[string]error {
	return map[string]error{
		"sentinel": fmt.Errorf("while saving: %w", errQuota),
		"typed":    fmt.Errorf("deep: %w", &codeError{7, verbatim}),
		"opaque":   fmt.Errorf("outer: %w", &hollowError{verbatim}),
		"nil":      (*hollowError)(nil),
		"burst":    &burstError{},
		"agent":    &agent.Error{Op: "call", Func: "f", Worker: "w", Err: &agent.TimeoutError{Limit: 5}},
		"future":   fmt.Errorf("x: %w", future.ErrCancelled),
		"eof":      io.ErrUnexpectedEOF,
	}
}

func serveFailures(_ int, c *agent.Config) {
	c.Registry = codec.NewRegistry()
	for _, err := range []error{
		c.Registry.RegisterError("test.errQuota", errQuota),
		c.Registry.Register("test.codeError", &codeError{}),
		c.Registry.Register("test.burstError", &burstError{}),
	} {
		if err != nil {
			panic(err)
		}
	}
	c.Funcs = agent.Funcs{failWith.Serve(func(_ context.Context, name string) (agent.None, error) {
		if err, ok := failures()[name]; ok {
			return agent.None{}, err
		}
		panic(errors.New(name))
	})}
}

func TestErrorsAtTheCaller(t *testing.T) {
	group := startGroup(t, 2, serveFailures)
	call := func(name string, opts ...agent.CallOption) error {
		_, err := failWith.Call(t.Context(), group[0], "worker1", name, opts...)
		_, later := failWith.Go(t.Context(), group[0], "worker1", name, opts...).Wait(t.Context())
		require.Equal(t, err.Error(), later.Error())
		require.ErrorContains(t, err, "agent: call test.failWith on worker1: ")
		var remote *agent.RemoteError
		require.ErrorAs(t, err, &remote)
		return err
	}
	for name, err := range failures() {
		if name != "nil" {
			require.ErrorContains(t, call(name), strings.TrimPrefix(err.Error(), "agent: "), name)
		}
	}
	require.ErrorIs(t, call("sentinel"), errQuota)
	require.ErrorIs(t, call("future"), future.ErrCancelled)
	require.ErrorIs(t, call("eof"), io.ErrUnexpectedEOF)

	var typed *codeError
	require.ErrorAs(t, call("typed"), &typed)
	require.Equal(t, codeError{7, verbatim}, *typed)

	var unknown *codec.RemoteError
	require.ErrorAs(t, call("opaque"), &unknown)
	require.Equal(t, "*fmt.wrapError", unknown.Type)
	require.Equal(t, []error{&codec.RemoteError{Type: "*agent_test.hollowError", Text: verbatim}}, unknown.Unwrap())

	var limit *agent.TimeoutError
	require.ErrorAs(t, call("agent"), &limit)
	require.EqualValues(t, 5, limit.Limit)
	require.ErrorIs(t, call("agent"), agent.ErrTimeout)
}

// If a handler returns an error whose methods panic, the caller gets an error with the text "cannot
// be encoded".
func TestErrorsWhoseMethodsPanic(t *testing.T) {
	group := startGroup(t, 2, serveFailures)
	for _, name := range []string{"nil", "burst"} {
		_, err := failWith.Call(t.Context(), group[0], "worker1", name, agent.WithTimeout(0))
		require.ErrorContains(t, err, "cannot be encoded", name)
	}
}

func TestPanicsAtTheCaller(t *testing.T) {
	group := startGroup(t, 2, serveFailures)
	var p *agent.PanicError
	_, err := failWith.Call(t.Context(), group[0], "worker1", "sudden "+verbatim)
	require.ErrorAs(t, err, &p)
	require.ErrorIs(t, err, agent.ErrPanic)
	require.Equal(t, "sudden "+verbatim, p.Value)
	require.Empty(t, p.Stack, "without WithRemoteStack")

	_, err = failWith.Call(t.Context(), group[0], "worker1", "sudden", agent.WithRemoteStack())
	require.ErrorAs(t, err, &p)
	require.Contains(t, p.Stack, "errors_test.go")
	var remote *agent.RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, p.Stack, remote.Stack)
}

// Several agents may use the same Registry, at the same time or one after the other.
func TestSharedRegistry(t *testing.T) {
	r := codec.NewRegistry()
	for range 2 {
		group := startGroup(t, 2, func(rank int, c *agent.Config) { serveFailures(rank, c); c.Registry = r })
		_, err := failWith.Call(t.Context(), group[0], "worker1", "agent")
		require.ErrorIs(t, err, agent.ErrTimeout)
	}
}

func TestRegistryWithConflict(t *testing.T) {
	r := codec.NewRegistry()
	require.NoError(t, r.RegisterError("agent.ErrTimeout", errQuota))
	_, err := agent.Join(t.Context(), agent.Config{Name: "a", WorldSize: 1, Rendezvous: "mem://", Registry: r})
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorIs(t, err, codec.ErrRegistered)
}
