package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
)

// jsonCodec encodes values as JSON, and counts its calls.
type jsonCodec struct{ encoded, decoded *atomic.Int32 }

func (c jsonCodec) Encode(e *codec.Encoder, ptr any) error {
	text, err := json.Marshal(ptr)
	if err != nil {
		return err
	}
	c.encoded.Add(1)
	e.WriteBytes(text)
	return nil
}

func (c jsonCodec) Decode(d *codec.Decoder, ptr any) error {
	text, err := d.ReadBytes()
	if err != nil {
		return err
	}
	c.decoded.Add(1)
	return json.Unmarshal(text, ptr)
}

// unexported is encoded by JSON, which ignores unexported fields, and rejected by package codec.
type unexported struct {
	N      int
	hidden int
}

func TestParityCodec(t *testing.T) {
	parity.Case(t, "rpc/RpcTest.test_use_rpc_pickler", func(t *testing.T) {
		twice := agent.NewFunc[unexported, unexported]("twice")
		serve := twice.Serve(func(_ context.Context, v unexported) (unexported, error) {
			if v.N == 0 {
				return v, errQuota
			}
			return unexported{N: 2 * v.N, hidden: v.hidden}, nil
		})
		var encoded, decoded [parityWorld]atomic.Int32
		group := startGroup(t, parityWorld, func(rank int, c *agent.Config) {
			c.Registry, c.Funcs, c.Codec = parityRegistry(), agent.Funcs{serve}, jsonCodec{&encoded[rank], &decoded[rank]}
		})
		requireAll(t, group, func(a *agent.Agent) error {
			got, err := twice.Call(t.Context(), a, next(a), unexported{N: 21, hidden: 1})
			return errors.Join(err, want(unexported{N: 42}, got))
		})
		for rank := range group {
			require.EqualValues(t, 2, encoded[rank].Load(), "its argument, and the result of its caller")
			require.EqualValues(t, 2, decoded[rank].Load(), "its result, and the argument of its caller")
		}
		for _, err := range each(t, group, func(a *agent.Agent) error {
			_, err := twice.Go(t.Context(), a, next(a), unexported{}).Wait(t.Context())
			return err
		}) {
			require.ErrorIs(t, err, errQuota, "errors are not the business of the codec")
		}
		for _, err := range each(t, group, func(a *agent.Agent) error {
			_, err := agent.NewFunc[chan int, unexported]("twice").Call(t.Context(), a, next(a), nil)
			return err
		}) {
			require.ErrorIs(t, err, agent.ErrArguments)
			require.ErrorContains(t, err, "json: unsupported type")
		}
		for _, err := range each(t, group, func(a *agent.Agent) error {
			_, err := agent.NewFunc[string, unexported]("twice").Call(t.Context(), a, next(a), "x")
			return err
		}) {
			require.ErrorIs(t, err, agent.ErrArguments, "the callee cannot decode it")
		}

		plain := startGroup(t, 2, func(_ int, c *agent.Config) { c.Funcs = agent.Funcs{serve} })
		_, err := twice.Call(t.Context(), plain[0], "worker1", unexported{N: 21})
		require.ErrorIs(t, err, codec.ErrUnsupported, "other agents keep theirs")
	})
}
