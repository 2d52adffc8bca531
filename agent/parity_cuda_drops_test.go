package agent_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda shows that the cases of device maps and streams need each record and wait of an event.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda(Maps|Streams|Async)$", Redundant: dropReasons, Calls: 4,
		Sample: []string{
			"TestParityCudaStreams/rpc/TensorPipeAgentCudaRpcTest.test_custom_stream",
			"TestParityCudaMaps/rpc/TensorPipeAgentCudaRpcTest.test_device_map_gpu_non_default",
		},
	}.Prove(t)
}

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
}
