package agent_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda shows that a sample of the cases of device maps and streams needs each record and wait of an event. Some calls of
// the others have no reason yet.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda(Maps|Streams|Async)$", Redundant: dropReasons, Calls: 4,
		Sample: []string{"TestParityCudaStreams/rpc/TensorPipeAgentCudaRpcTest.test_custom_stream"},
	}.Prove(t)
}

// dropReasons are the reasons why bytes are right without a call.
var dropReasons = []drops.Reason{
	{
		Text: "a later tensor of the message is copied on the same streams, which wait for that copy",
		Site: `^cudaipc.(exchange < cudaipc.\(\*ipcEnd\).pull|\(\*ipcSource\).Copied)`,
	},
	{
		Text:     "the tensor is ready when the next one, on the same stream, is made",
		Scenario: `nested_with_cuda_future`, Site: `^cudaipc.\(\*ipcEnd\).Describe`,
	},
	{
		Text: "cuda_basic copies the tensors of a message in order, and the stream waits for the last copy",
		Site: `< cudaipc.\(\*basicEnd\).conclude < cudaipc.\(\*basicEnd\).drainArrived`,
	},
	{
		Text: "the slot of the ring is not used again",
		Site: `^cudaipc.\(\*Stream\).Record < cudaipc.\(\*ring\).copy`,
	},
	{
		Text:     "cuda_basic completes a Send when the copy out of the memory has ended",
		Scenario: `_(cpu_to_gpu|gpu_to_cpu)_`, Site: `< streampool.\(\*Message\).End`,
	},
	{
		Text:     "an earlier copy between the GPUs has ordered their streams",
		Scenario: `multi_gpu`, Site: `< cudaipc.\(\*copyOperation\).enqueue < .* < agent_test.mapFuncs`,
	},
	{
		Text:     "the other argument, for which the stream waits too, arrives later",
		Scenario: `gpu_mixed_`, Site: `< cudaipc.\(\*copyOperation\).enqueue < .* < agent_test.mapFuncs`,
	},
	{
		Text: "an earlier result of the same reply is read before",
		Site: `< agent.order.func1 < .* < agent_test.(requireMultiGPU|returnToGPU)`,
	},
	{
		Text: "the function waits again for the stream on which the tensor is valid, which is the same",
		Site: `< cudaipc.\(\*Stream\).WaitFor < agent_test.sleepAndSetToOne`,
	},
}
