package rref_test

import (
	"strings"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda shows that the cases of references on GPUs need each record and wait of an event.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda", Redundant: dropReasons, Calls: 4,
		Skip:   func(scenario string) bool { return strings.Contains(scenario, "missing_config") }, // no tensor is received
		Sample: []string{"TestParityCudaAsArgument/1/rpc/TensorPipeAgentCudaRpcTest.test_rref_as_arg_synchronization1"},
	}.Prove(t)
}

// dropReasons are the reasons why bytes are right without a call.
var dropReasons = []drops.Reason{
	{
		Text:     "the tensor that is summed is not changed",
		Scenario: `owner_rref_forward|rref_with_unpickleable_attributes`, Site: `< cudaipc.\(\*work\).finish < cudaipc.\(\*Kind\).run < cudaipc.kernels.Sum <`,
	},
	{
		Text:     "the result is fetched by a message, which waits for the stream of the tensor; the event is for uses at the owner",
		Scenario: `rref_forward_sync|to_here|as_arg`, Call: `record`, Site: `< future.record < .* < agent.\(\*Request\).orderKept <`,
	},
	{
		Text:     "no stream waits for the event of the class",
		Scenario: `rref_with_unpickleable_attributes`, Call: `record`, Site: `^cudaipc.\(\*Stream\).Record < rref_test.`,
	},
	{
		Text:     "it orders the reuse of freed memory of another GPU, and the memory is not freed",
		Scenario: `owner_rref_forward_synchronization[23]`, Site: `< cudaipc.\(\*copyOperation\).finish < cudaipc.\(\*Kind\).Copy < xth.enqueueCopy <`,
	},
}
