package agent_test

import (
	"regexp"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda shows that the cases of device maps, streams and futures need each record and wait of an event.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda(Maps|Streams|Async|Futures)$", Redundant: dropReasons, Calls: 4,
		Skip: func(scenario string) bool { return noBytes.MatchString(scenario) },
		Sample: []string{
			"TestParityCudaStreams/rpc/TensorPipeAgentCudaRpcTest.test_custom_stream",
			"TestParityCudaMaps/rpc/TensorPipeAgentCudaRpcTest.test_device_map_gpu_non_default",
		},
	}.Prove(t)
}

// noBytes matches the scenarios in which no bytes are compared.
var noBytes = regexp.MustCompile(`test_cuda_future_(modify_tensor_inplace|replace_tensor)$`)

// dropReasons are the reasons why bytes are right without a call.
var dropReasons = []drops.Reason{
	{
		Text:     "a later tensor of the message is copied on the same streams, which wait for that copy",
		Scenario: `test_(device_maps?_|custom_stream|async_execution)`, Site: `^cudaipc.(exchange < cudaipc.\(\*ipcEnd\).pull|\(\*ipcSource\).Copied)`,
	},
	{
		Text:     "cuda_basic copies the tensors of a message in order, and the stream waits for the last copy",
		Scenario: `test_device_map_gpu_to_cpu_`, Site: `< cudaipc.\(\*basicEnd\).conclude < cudaipc.\(\*basicEnd\).drainArrived`,
	},
	{
		Text:     "cuda_basic completes a Send when the copy out of the memory has ended",
		Scenario: `test_device_map_gpu_to_cpu_`, Site: `< streampool.\(\*Message\).End`,
	},
	{
		Text:     "an earlier copy between the GPUs has ordered their streams",
		Scenario: `test_device_maps_multi_gpu`, Site: `< cudaipc.\(\*copyOperation\).enqueue < .* < agent_test.mapFuncs`,
	},
	{
		Text:     "the argument is not changed after the copy",
		Scenario: `test_device_maps_multi_gpu|test_device_map_gpu_mixed_self_`, Site: `< cudaipc.\(\*copyOperation\).finish < .* < agent_test.mapFuncs`,
	},
	{
		Text:     "the reply waits for the stream on which the tensor is valid",
		Scenario: `test_async_execution_with_cuda_future`, Call: `record`, Site: `< future.\(\*Devices\).record < .* < agent_test.sleepAndSetToOne`,
	},
	{
		Text:     "the host has waited for an earlier result, which takes as long",
		Scenario: `test_custom_stream_nested_multi`, Call: `record`, Site: `< future.record < .* < agent.\(\*asyncCall`,
	},
	{
		Text:     "no stream waits for the event of the class",
		Scenario: `test_cuda_future_can_extract_custom_class_`, Call: `record`, Site: `^cudaipc.\(\*Stream\).Record < agent_test.newEvent <`,
	},
	{
		Text:     "the stream of cuda:0 waits for the same events, and that of cuda:1 for it before it reads the value",
		Scenario: `test_cuda_future_callback_changes_devices`, Call: `wait s8 `, Site: `< future.\(\*Future\[...\]\).Order < future.derive`,
	},
}
