package torch_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/device"
)

func TestErrors(t *testing.T) {
	const (
		ran   = "RPC ran for more than set timeout (1500 ms) and will now be marked with an error"
		wrong = "wrong configuration: "

		onlyCPU = "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure device mapping. "
	)
	npu := func(index int) device.Device { return device.Device{Kind: "npu", Index: index} }
	timeout := &agent.TimeoutError{Limit: 1500 * time.Millisecond}
	self := agent.WorkerInfo{Name: "a", Rank: 0}
	taken := &roster.DuplicateRankError{Rank: 1, Holder: "b", Other: "c"}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{io.EOF, "EOF"},
		{timeout, ran},
		{&agent.TimeoutError{Limit: time.Microsecond}, "RPC ran for more than set timeout (0 ms) and will now be marked with an error"},
		{&agent.RetryError{Max: 2, Err: timeout}, "The RPC has not succeeded after the specified number of max retries (2).: " + ran},
		{&agent.RetryError{Max: 2}, "The RPC has not succeeded after the specified number of max retries (2).: unknown error"},
		{&agent.MissingError{Workers: []string{"b", "c"}, Waited: 100 * time.Millisecond, Err: timeout}, "followers [b c] timed out in _all_gather after 0.10 seconds: " + ran},
		{&agent.UnknownWorkerError{Self: self, Name: "b"}, "no such worker: WorkerInfo(id=0, name=a) could not find destination name b"},
		{&agent.UnknownWorkerError{Self: self, Rank: 7, ByRank: true}, "no such worker: WorkerInfo(id=0, name=a) could not find destination id 7"},
		{&agent.ConfigError{Field: "Timeout", Value: -3 * time.Second}, wrong + "RPC Timeout must be non-negative, got -3s"},
		{&agent.ConfigError{Field: "Retry.Max", Value: -1}, wrong + "maxRetries cannot be negative"},
		{&agent.ConfigError{Field: "Retry.Delay", Value: -1}, wrong + "rpcRetryDuration cannot be negative"},
		{&agent.ConfigError{Field: "Retry.Backoff", Value: 0.5, Min: 1}, wrong + "maxRetries cannot be exponentially decaying"},
		{&agent.ConfigError{Field: "Other", Value: 0.5, Min: 1}, wrong + "Other is 0.5, and must be at least 1"},
		{&faulty.InjectedError{Message: "m", Worker: "b"}, "RPCErr:2:Send attempt failed intentionally for m to b"},
		{&faulty.InjectedError{Message: "m", Worker: "b", Err: timeout}, ran},
		{&roster.NameError{Name: "a b"}, `Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, but got "a b"`},
		{&roster.RankError{Rank: 1 << 15}, "RPC worker id 32768 out of bound of int16_t."},
		{&roster.DuplicateNameError{Name: "a", Rank: 0, Other: 1}, "RPC worker name a is not unique. Workers 0 and 1 share the same name."},
		{&roster.NotLeftError{Name: "a", Rank: 1}, "RPC worker name a is not unique. Another incarnation has it, with rank 1, and has not left: if it has died, remove or replace it"},
		{taken, "RPC worker id 1 is not unique. Worker b and already has ID and c cannot be added."},
		{&agent.DeviceMapError{Device: npu(0), First: npu(1), Second: npu(2)}, "`set_device_map` only supports 1-to-1 mapping, trying to map npu:0 to npu:1 and npu:2"},
		{&agent.DeviceMapError{Device: npu(0), First: npu(1), Second: npu(2), Target: true}, "`device_map` only supports 1-to-1 mapping, trying to map npu:1 and npu:2 to npu:0"},
		{&agent.DeviceMapError{Device: npu(-1)}, "Device index must not be negative"},
		{&agent.DeviceError{Worker: "b", Device: npu(1), NoMap: true}, onlyCPU + "Request device mapping is not available for destination b, but found tensor on device: npu:1"},
		{&agent.DeviceError{Worker: "b", Device: npu(1), NoMap: true, Reply: true}, onlyCPU + "Response device mapping is not available for destination b, but found tensor on device: npu:1"},
		{&agent.DeviceError{Worker: "b", Device: npu(1)}, onlyCPU + "Request device mapping is not available for destination " + onlyCPU + "Request device mapping is not available for destination b for device npu:1 but received a tensor on that device."},
		{&future.DeviceError{Found: []device.Device{npu(0), npu(2)}, Expected: []device.Device{npu(1)}}, "The result contained tensors residing on device(s) npu:0, npu:2 which are not among the expected device(s) npu:1"},
		{&future.CPUError{Device: device.CPU()}, "Expected devices to have indices, got cpu"},
		{agent.ErrMixed, "RPC group mixes statically and dynamically initialized members which is not supported."},

		// Errors within errors.
		{&agent.Error{Op: "call", Func: "f", Worker: "b", Err: &agent.RemoteError{Err: timeout}}, "agent: call f on b: " + ran},
		{&agent.Error{Op: "call"}, "agent: call: unknown error"},
		{&agent.RemoteError{}, "unknown error"},
		{fmt.Errorf("%w, %w and %w", timeout, io.EOF, timeout), ran + ", EOF and " + ran},
		{errors.Join(io.EOF, taken), "EOF\n" + torch.Error(taken)},
		{hidden{errors.Join(io.EOF, taken)}, "hides " + torch.Error(taken) + " (x)"},
		{fmt.Errorf("deep: %w", errors.Join(timeout)), "deep: " + ran},

		// A timeout that another worker sent as text.
		{&agent.Error{Err: fmt.Errorf("%w: %s, and so on", agent.ErrCallerGone, timeout)}, "agent: : caller gave up: " + ran + ", and so on"},
	} {
		require.Equal(t, c.want, torch.Error(c.err), "%T", c.err)
	}
}

// hidden is an error whose text has a cause of its cause, without the text of the cause.
type hidden struct{ error }

func (h hidden) Error() string {
	var taken *roster.DuplicateRankError
	errors.As(h.error, &taken)
	return "hides " + taken.Error() + " (x)"
}

func (h hidden) Unwrap() error { return h.error }

// TestErrorsOfAgent checks that Error returns PyTorch's text for errors of Join, Worker and
// SetDefaultTimeout of an agent.
func TestErrorsOfAgent(t *testing.T) {
	s := store.NewMemory(store.Limits{})
	defer s.Close()
	join := func(name string, rank, world int) string {
		c := agent.Config{Name: name, Rank: rank, WorldSize: world, Store: s, Listen: []string{"uv://127.0.0.1:0"}}
		a, err := agent.Join(t.Context(), c)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, a.Close()) })
		}
		return torch.Error(err)
	}
	require.Contains(t, join("a b", 0, 1), `: Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, but got "a b"`)
	require.Contains(t, join("a", 1<<15, 1<<15), ": RPC worker id 32768 out of bound of int16_t.")
	require.Empty(t, join("a", 0, 1))
	require.Contains(t, join("b", 0, 1), ": RPC worker id 0 is not unique. Worker a and already has ID and b cannot be added. (a has not left: if it has died,")
	require.Contains(t, join("b", 0, 0), ": RPC group mixes statically and dynamically initialized members which is not supported.")

	a, err := agent.Join(t.Context(), agent.Config{Name: "lone", WorldSize: 1, Store: s, Group: "other", Listen: []string{"uv://127.0.0.1:0"}})
	require.NoError(t, err)
	defer a.Close()
	_, err = a.Worker(t.Context(), "b")
	require.Equal(t, "agent: worker b: no such worker: WorkerInfo(id=0, name=lone) could not find destination name b", torch.Error(err))
	_, err = a.Worker(t.Context(), agent.Rank(7))
	require.ErrorIs(t, err, agent.ErrNoWorker)
	require.Contains(t, torch.Error(err), ": no such worker: WorkerInfo(id=0, name=lone) could not find destination id 7")
	require.Equal(t, "wrong configuration: RPC Timeout must be non-negative, got -3s", torch.Error(a.SetDefaultTimeout(-3*time.Second)))
}
