package dist_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda shows that a sample of the cases of gradients on GPUs needs each record and wait of an event.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda", Redundant: dropReasons, Calls: 4,
		Sample: []string{
			"TestParityCuda/dist_autograd/CudaDistAutogradTest.test_gpu_simple",
			"TestParityCuda/dist_autograd/CudaDistAutogradTest.test_gpu_to_cpu_continuation",
		},
	}.Prove(t)
}

// dropReasons are the reasons why bytes are right without a call.
var dropReasons = []drops.Reason{
	{
		Text:     "the input is ready before the gradient with which it is multiplied",
		Scenario: `gradients_synchronizations`, Site: `< cudaipc.\(\*Kind\).run < cudaipc.kernels.MatMul < .* < ops.\(\*Engine\).weightGradient`,
	},
	{
		Text:     "the bias is valid on the stream of the weight, for which the product has waited",
		Scenario: `gradients_synchronizations`, Site: `< cudaipc.\(\*Kind\).run < cudaipc.kernels.elementwise < cudaipc.kernels.Add < .* < ops.\(\*Engine\).deviceProduct`,
	},
	{
		Text:     "the gradient is read on the stream on which it is valid",
		Scenario: `gradients_synchronizations`, Call: `record`, Site: `< future.record < .* < agent.\(\*asyncCall`,
	},
	{
		Text:     "the result is used on the stream on which it is valid",
		Scenario: `gradients_synchronizations`, Site: `< agent.order.func1 < .* < dist_test.gradientsSynchronizations`,
	},
	{
		Text:     "an earlier event of the message is behind the work for all its tensors",
		Scenario: `gradients_synchronizations`, Call: `record`, Site: `^cudaipc.\(\*ipcEnd\).Describe`,
	},
	{
		Text:     "a later tensor of the message is copied on the same streams, which wait for that copy",
		Scenario: `gradients_synchronizations`, Site: `^cudaipc.(exchange < cudaipc.\(\*ipcEnd\).pull|\(\*ipcSource\).Copied)`,
	},
	{
		Text:     "the parameters of the model are not changed",
		Scenario: `gradients_synchronizations`, Site: `< cudaipc.\(\*work\).finish < .* < dist_test.linear.forward`,
	},
}
