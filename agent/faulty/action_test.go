package faulty_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	double = agent.NewFunc[int, int]("test.double")
	sum    = agent.NewFunc[*tensor.Tensor, float32]("test.sum")
	wait   = agent.NewFunc[agent.None, int]("test.wait")
)

func serveDouble() agent.Funcs {
	return agent.Funcs{double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil })}
}

func TestFail(t *testing.T) {
	own := errors.New("out of luck")
	rules := []faulty.Rule{{First: 1, Do: faulty.Fail(nil)}, {First: 2, Do: faulty.Fail(own)}}
	simulate(t, 2, serveDouble(), rules, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
		_, err := double.Call(t.Context(), group[0], "worker1", 1)
		require.ErrorIs(t, err, faulty.ErrInjected)
		require.ErrorIs(t, err, agent.ErrUnreachable)
		require.ErrorContains(t, err, "injected failure: test.double to worker1 was not sent")
		require.Contains(t, torch.Error(err), "RPCErr:2:Send attempt failed intentionally for test.double to worker1")
		var injected *faulty.InjectedError
		require.ErrorAs(t, err, &injected)
		require.Equal(t, faulty.InjectedError{Message: "test.double", Worker: "worker1"}, *injected)

		_, err = double.Go(t.Context(), group[0], "worker1", 1).Wait(t.Context())
		require.ErrorIs(t, err, faulty.ErrInjected)
		require.ErrorIs(t, err, own)

		n, err := double.Call(t.Context(), group[0], "worker1", 1)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, []faulty.Count{{Matched: 3, Taken: 1}, {Matched: 3, Taken: 2}}, faults.Counts())
	})
}

// TestDrop checks that if the request or the reply of a call is lost, the call ends with ErrTimeout
// at its limit, and the next call succeeds.
func TestDrop(t *testing.T) {
	for _, kind := range []agent.Kind{agent.KindRequest, agent.KindReply} {
		t.Run(kind.String(), func(t *testing.T) {
			rules := []faulty.Rule{{Kinds: []agent.Kind{kind}, First: 1, Do: faulty.Drop()}}
			simulate(t, 2, serveDouble(), rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
				begun := time.Now()
				_, err := double.Call(t.Context(), group[0], "worker1", 1, agent.WithTimeout(5*time.Second))
				require.ErrorIs(t, err, agent.ErrTimeout)
				require.Equal(t, 5*time.Second, time.Since(begun))
				_, err = double.Call(t.Context(), group[0], "worker1", 1)
				require.NoError(t, err)
			})
		})
	}
}

// TestDelay checks that a delayed request is served after the delay, and does not delay later calls
// to the same worker.
func TestDelay(t *testing.T) {
	rules := []faulty.Rule{{First: 1, Do: faulty.Delay(3 * time.Second)}}
	simulate(t, 2, serveDouble(), rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		begun := time.Now()
		late := double.Go(t.Context(), group[0], "worker1", 1)
		_, err := double.Call(t.Context(), group[0], "worker1", 2)
		require.NoError(t, err)
		require.Zero(t, time.Since(begun))
		n, err := late.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

// TestDelayKeepsTensors checks that after a call has timed out, its caller may overwrite the tensor
// argument although the delayed request has not been sent yet: nothing reads the tensor, as the
// race detector would report, and the function is not run.
func TestDelayKeepsTensors(t *testing.T) {
	var got chan float32 // made in the bubble
	funcs := agent.Funcs{sum.Serve(func(_ context.Context, x *tensor.Tensor) (float32, error) {
		data, err := tensor.Data[float32](x)
		if err != nil {
			return 0, err
		}
		total := float32(0)
		for _, v := range data {
			total += v
		}
		got <- total
		return total, nil
	})}
	for _, elements := range []int{4, 1 << 20} {
		rules := []faulty.Rule{{Do: faulty.Delay(3 * time.Second)}}
		simulate(t, 2, funcs, rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
			got = make(chan float32, 1)
			x, err := tensor.Zeros(tensor.F32, elements)
			require.NoError(t, err)
			require.NoError(t, tensor.Fill(x, float32(1)))
			_, err = sum.Call(t.Context(), group[0], "worker1", x, agent.WithTimeout(time.Second))
			require.ErrorIs(t, err, agent.ErrTimeout)
			require.NoError(t, tensor.Fill(x, float32(7)))
			<-time.NewTimer(time.Hour).C
			require.Empty(t, got, "the cancellation arrived first")
		})
	}
}

// TestDuplicateWhileServed checks that a request that arrives a second time while it is being
// served is not run again, and the call returns its one result.
func TestDuplicateWhileServed(t *testing.T) {
	var runs atomic.Int32
	var goOn chan struct{} // made in the bubble
	funcs := agent.Funcs{wait.Serve(func(ctx context.Context, _ agent.None) (int, error) {
		n := runs.Add(1)
		select {
		case <-goOn:
			return int(n), nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})}
	rules := []faulty.Rule{{Func: "test.wait", Do: faulty.Duplicate()}}
	simulate(t, 2, funcs, rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		goOn = make(chan struct{})
		f := wait.Go(t.Context(), group[0], "worker1", agent.None{})
		synctest.Wait()
		select {
		case <-f.Done():
			t.Fatal(f.Result())
		default:
		}
		close(goOn)
		n, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		synctest.Wait()
		require.EqualValues(t, 1, runs.Load())
	})
}

// TestDuplicateReply checks that if each reply arrives twice, every call returns the result of its
// own reply.
func TestDuplicateReply(t *testing.T) {
	rules := []faulty.Rule{{Kinds: []agent.Kind{agent.KindReply}, Do: faulty.Duplicate()}}
	simulate(t, 2, serveDouble(), rules, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
		for i := range 10 {
			n, err := double.Call(t.Context(), group[0], "worker1", i)
			require.NoError(t, err)
			require.Equal(t, 2*i, n)
		}
		require.Equal(t, []faulty.Count{{Matched: 10, Taken: 10}}, faults.Counts())
	})
}

// TestCloseWithDelayed checks that Close of an agent does not wait for its delayed messages, and
// the call whose request was delayed fails with ErrClosed.
func TestCloseWithDelayed(t *testing.T) {
	rules := []faulty.Rule{{Do: faulty.Delay(time.Hour)}}
	simulate(t, 2, serveDouble(), rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		begun := time.Now()
		f := double.Go(t.Context(), group[0], "worker1", 1)
		require.NoError(t, group[0].Close())
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrClosed)
		require.Less(t, time.Since(begun), time.Hour)
	})
}
