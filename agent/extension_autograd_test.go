package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// A toy of distributed autograd with the exported API only: calls in an autograd context carry its
// id, and both ends record the tensors of each message under the number of that message.

// toyVariable is a tensor that is recorded.
type toyVariable struct{ Value *tensor.Tensor }

type toyContextKey struct{}

// withToyContext returns a context derived from ctx. The messages of calls that are made with it
// are recorded for the toy autograd context with this id.
func withToyContext(ctx context.Context, id uint64) context.Context {
	return context.WithValue(ctx, toyContextKey{}, id)
}

func toyContext(ctx context.Context) uint64 {
	id, _ := ctx.Value(toyContextKey{}).(uint64)
	return id
}

// toyRecord is one message as recorded by one end.
type toyRecord struct {
	context, message uint64
	what             string // "send request to worker1", ...
	tensors          []float32
}

// toyGrad is the records of one worker.
type toyGrad struct {
	mu      sync.Mutex
	last    uint64
	records []toyRecord
}

const toyHeader = "toygrad"

type (
	toySentKey     struct{} // *toyMessage of the message that is being encoded
	toyReceivedKey struct{} // *toyMessage of the message that is being decoded
)

// toyMessage passes data from the codec hook to the interceptor.
type toyMessage struct {
	context, message uint64
	tensors          []float32
}

func (g *toyGrad) install(c *agent.Config) error {
	c.Interceptors = append(c.Interceptors, agent.Interceptor{
		Encoding: g.encoding, Encoded: g.encoded, Received: g.received, Decoded: g.decoded,
	})
	c.Registry = codec.NewRegistry()
	return codec.Hook(c.Registry, "toyvariable", encodeToyVariable, decodeToyVariable)
}

func encodeToyVariable(e *codec.Encoder, v **toyVariable) error {
	if m, ok := e.State(toySentKey{}).(*toyMessage); ok {
		if err := m.add((*v).Value); err != nil {
			return err
		}
	}
	return e.Encode(&(*v).Value)
}

func decodeToyVariable(d *codec.Decoder, v **toyVariable) error {
	*v = &toyVariable{}
	if err := d.Decode(&(*v).Value); err != nil {
		return err
	}
	if m, ok := d.State(toyReceivedKey{}).(*toyMessage); ok {
		return m.add((*v).Value)
	}
	return nil
}

func (m *toyMessage) add(x *tensor.Tensor) error {
	data, err := tensor.Data[float32](x)
	if err == nil {
		m.tensors = append(m.tensors, data[0])
	}
	return err
}

func (g *toyGrad) encoding(ctx context.Context, m *agent.Message) error {
	if id := toyContext(ctx); id != 0 {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.last++
		m.SetState(toySentKey{}, &toyMessage{context: id, message: g.last})
	}
	return nil
}

// encoded is the Encoded function of the interceptor. It adds the header with the autograd context
// and the number of tensors to a message of such a context, also if the message has no tensors, and
// records the message as sent. Other messages it leaves alone.
func (g *toyGrad) encoded(_ context.Context, m *agent.Message) error {
	sent, ok := m.State(toySentKey{}).(*toyMessage)
	if !ok {
		return nil
	}
	data := binary.AppendUvarint(nil, sent.context)
	data = binary.AppendUvarint(data, sent.message)
	m.SetHeader(toyHeader, binary.AppendUvarint(data, uint64(len(sent.tensors))))
	g.record(sent, fmt.Sprintf("send %v to %s", m.Kind, m.Peer.Name))
	return nil
}

func (g *toyGrad) received(ctx context.Context, m *agent.Message) (context.Context, error) {
	data, ok := m.Header(toyHeader)
	if !ok {
		return ctx, nil
	}
	in, n := &toyMessage{}, 0
	in.context, n = binary.Uvarint(data)
	in.message, _ = binary.Uvarint(data[n:])
	m.SetState(toyReceivedKey{}, in)
	return withToyContext(ctx, in.context), nil
}

func (g *toyGrad) decoded(ctx context.Context, m *agent.Message) error {
	in, ok := m.State(toyReceivedKey{}).(*toyMessage)
	if !ok {
		return nil
	}
	if toyContext(ctx) != in.context {
		return errors.New("decoded in another context than received")
	}
	data, _ := m.Header(toyHeader)
	if want := int(data[len(data)-1]); want != len(in.tensors) {
		return fmt.Errorf("%d tensors, the section says %d", len(in.tensors), want)
	}
	g.record(in, fmt.Sprintf("recv %v from %s", m.Kind, m.Peer.Name))
	return nil
}

func (g *toyGrad) record(m *toyMessage, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records = append(g.records, toyRecord{m.context, m.message, what, slices.Clone(m.tensors)})
}

// take returns the records so far, in their order, clears them and restarts the numbers of
// messages.
func (g *toyGrad) take() []toyRecord {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.records
	g.records, g.last = nil, 0
	return all
}

type toyAdd struct {
	X, Y *toyVariable
	Via  string // the worker that adds them, "" for the callee
}

var toyAdds = agent.NewFunc[toyAdd, *toyVariable]("toygrad.add")

func addVariables(ctx context.Context, args toyAdd) (*toyVariable, error) {
	if args.Via != "" {
		return toyAdds.Call(ctx, agent.FromContext(ctx), agent.To(args.Via), toyAdd{X: args.X, Y: args.Y})
	}
	sum, err := addTensors(ctx, pair{args.X.Value, args.Y.Value})
	return &toyVariable{sum}, err
}

func startToyGrad(t *testing.T, n int, test func(t *testing.T, group []*agent.Agent, grads []*toyGrad)) {
	grads := make([]*toyGrad, n)
	configure := func(rank int, c *agent.Config) {
		grads[rank] = &toyGrad{}
		require.NoError(t, grads[rank].install(c))
		c.Funcs = agent.Funcs{toyAdds.Serve(addVariables)}
	}
	simulate(t, n, configure, func(t *testing.T, group []*agent.Agent) { test(t, group, grads) })
}

func variable(t *testing.T, value float32) *toyVariable {
	return &toyVariable{filled(t, value, 2)}
}

// Interceptors at both ends record the tensors of requests and results under the same message
// number. The autograd context is propagated to nested calls.
func TestToyGrad(t *testing.T) {
	startToyGrad(t, 3, func(t *testing.T, group []*agent.Agent, grads []*toyGrad) {
		ctx := withToyContext(t.Context(), 9)
		sum, err := toyAdds.Call(ctx, group[0], "worker1", toyAdd{X: variable(t, 1), Y: variable(t, 2), Via: "worker2"})
		require.NoError(t, err)
		got, err := tensor.Data[float32](sum.Value)
		require.NoError(t, err)
		require.Equal(t, []float32{3, 3}, got)
		synctest.Wait()
		require.Equal(t, []toyRecord{
			{9, 1, "send request to worker1", []float32{1, 2}},
			{9, 2, "recv reply from worker1", []float32{3}},
		}, grads[0].take())
		require.Equal(t, []toyRecord{
			{9, 1, "recv request from worker0", []float32{1, 2}},
			{9, 1, "send request to worker2", []float32{1, 2}},
			{9, 1, "recv reply from worker2", []float32{3}},
			{9, 2, "send reply to worker0", []float32{3}},
		}, grads[1].take())
		require.Equal(t, []toyRecord{
			{9, 1, "recv request from worker1", []float32{1, 2}},
			{9, 1, "send reply to worker1", []float32{3}},
		}, grads[2].take())
	})
}

// Interceptors record the requests and results of calls of a worker to itself that return a future.
func TestToyGradSelf(t *testing.T) {
	startToyGrad(t, 1, func(t *testing.T, group []*agent.Agent, grads []*toyGrad) {
		ctx := withToyContext(t.Context(), 5)
		_, err := toyAdds.Go(ctx, group[0], "worker0", toyAdd{X: variable(t, 1), Y: variable(t, 2)}).Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, []toyRecord{
			{5, 1, "send request to worker0", []float32{1, 2}},
			{5, 1, "recv request from worker0", []float32{1, 2}},
			{5, 2, "send reply to worker0", []float32{3}},
			{5, 2, "recv reply from worker0", []float32{3}},
		}, grads[0].take())
	})
}

// The message of a failed call propagates the autograd context to the caller, too.
func TestToyGradErrors(t *testing.T) {
	startToyGrad(t, 2, func(t *testing.T, group []*agent.Agent, grads []*toyGrad) {
		ctx := withToyContext(t.Context(), 7)
		_, err := toyAdds.Call(ctx, group[0], "worker1", toyAdd{X: variable(t, 1), Y: variable(t, 2), Via: "worker9"})
		require.ErrorIs(t, err, agent.ErrNoWorker)
		require.Equal(t, []toyRecord{
			{7, 1, "send request to worker1", []float32{1, 2}},
			{7, 1, "recv failure from worker1", nil},
		}, grads[0].take())
		require.Equal(t, []toyRecord{
			{7, 1, "recv request from worker0", []float32{1, 2}},
			{7, 1, "send failure to worker0", nil},
		}, grads[1].take())
	})
}

// Interceptors record nothing for calls that are made without an autograd context.
func TestNoToyGrad(t *testing.T) {
	startToyGrad(t, 2, func(t *testing.T, group []*agent.Agent, grads []*toyGrad) {
		_, err := toyAdds.Call(t.Context(), group[0], "worker1", toyAdd{X: variable(t, 1), Y: variable(t, 2)})
		require.NoError(t, err)
		require.Empty(t, grads[0].take())
		require.Empty(t, grads[1].take())
	})
}

// If any function of an interceptor returns an error, for a request or for a reply, the call fails
// with the text of that error at once, and nothing of the call stays pending.
func TestInterceptorFails(t *testing.T) {
	refused := errors.New("refused by an interceptor")
	for _, kind := range []agent.Kind{agent.KindRequest, agent.KindReply} {
		check := func(_ context.Context, m *agent.Message) error {
			if m.Kind == kind && m.Name == "test.echo" {
				return refused
			}
			return nil
		}
		for name, i := range map[string]agent.Interceptor{
			"encoding": {Encoding: check}, "encoded": {Encoded: check}, "decoded": {Decoded: check},
			"received": {Received: func(ctx context.Context, m *agent.Message) (context.Context, error) { return ctx, check(ctx, m) }},
		} {
			t.Run(kind.String()+" "+name, func(t *testing.T) {
				configure := func(_ int, c *agent.Config) {
					c.Interceptors = []agent.Interceptor{i}
					c.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil })}
				}
				simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
					_, err := echo.Call(t.Context(), group[0], "worker1", 1)
					require.ErrorContains(t, err, refused.Error())
					require.NotErrorIs(t, err, agent.ErrTimeout)
					synctest.Wait()
					require.Empty(t, group[0].Snapshot().Pending)
					require.Empty(t, group[1].Snapshot().Served)
				})
			})
		}
	}
}
