package pipe_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// fullPipe returns the two ends of a pipe over TCP, and the operations of messages that were given to
// WriteAsync, with the contexts in turn, while the server reads none: enough that the last ones wait for it.
func fullPipe(t *testing.T, contexts ...context.Context) (client, server *pipe.Pipe, sent []*pipe.Message, ops []*pipe.WriteOp) {
	t.Helper()
	client, server = connect(t, pathNamed("uv+basic+native"), func(o *pipe.Options) { o.Limits.PipeBytesInFlight = 512 << 20 })
	waiting := 0
	for i := 0; waiting < 30; i++ {
		m := message(i, []int{65_536, 100, 20_000, 0}, []int{40_000, 5})
		sent, ops = append(sent, m), append(ops, client.WriteAsync(contexts[i%len(contexts)], m))
		waiting = 0
		for _, op := range ops[max(0, len(ops)-64):] {
			select {
			case <-op.Done():
			default:
				waiting++
			}
		}
	}
	return client, server, sent, ops
}

// TestAsyncWriteWaitsForThePeer checks that WriteAsync does not copy messages that a full connection cannot take,
// and that they arrive in order, together with later ones of Write, which copies and does not wait.
func TestAsyncWriteWaitsForThePeer(t *testing.T) {
	client, server, sent, ops := fullPipe(t, t.Context())
	for i := range 3 {
		m := message(1000+i, []int{65_536, 1}, []int{30_000})
		require.NoError(t, client.Write(testContext(t), m))
		sent = append(sent, m)
	}
	for _, m := range sent {
		expect(t, server, m)
	}
	for _, op := range ops {
		require.NoError(t, op.Wait(testContext(t)))
	}
}

// TestAsyncWriteIsRecalled checks that the end of the context ends writes that wait for the peer, of which some are
// written together with others, without an error: their memory is not used any more, and all messages arrive
// intact.
func TestAsyncWriteIsRecalled(t *testing.T) {
	for _, every := range []int{1, 2, 5} {
		t.Run(fmt.Sprint("every ", every), func(t *testing.T) {
			ctx, cancel := cancelled(t)
			contexts := []context.Context{ctx}
			for len(contexts) < every {
				contexts = append(contexts, t.Context())
			}
			_, server, sent, ops := fullPipe(t, contexts...)
			cancel()
			for i := 0; i < len(ops); i += every {
				require.NoError(t, ops[i].Wait(testContext(t)))
				for _, p := range sent[i].Payloads {
					clear(p.Data) // the race detector reports a reader
				}
			}
			for i := range sent {
				expect(t, server, message(i, []int{65_536, 100, 20_000, 0}, []int{40_000, 5}))
			}
			for _, op := range ops {
				require.NoError(t, op.Wait(testContext(t)))
			}
		})
	}
}

// TestAsyncWriteFails checks that writes that wait for the peer end with the error of the pipe.
func TestAsyncWriteFails(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(client, server *pipe.Pipe)
		with error
	}{
		"abort":      {func(client, _ *pipe.Pipe) { client.Abort(errEnough) }, errEnough},
		"peer's end": {func(_, server *pipe.Pipe) { server.Abort(errEnough) }, pipe.ErrPeerClosed},
	} {
		t.Run(name, func(t *testing.T) {
			client, server, _, ops := fullPipe(t, t.Context())
			end.by(client, server)
			failed := 0
			for _, op := range ops {
				if err := op.Wait(testContext(t)); err != nil {
					require.ErrorIs(t, err, end.with)
					failed++
				}
			}
			require.Positive(t, failed)
		})
	}
}
