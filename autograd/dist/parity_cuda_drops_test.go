package dist_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda shows that a sample of the cases of gradients on GPUs needs each record and wait of an event. Some calls of
// the others have no reason yet.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda", Redundant: dropReasons, Calls: 2,
		Sample: []string{"TestParityCuda/dist_autograd/CudaDistAutogradTest.test_gpu_simple"},
	}.Prove(t)
}

// dropReasons are the reasons why bytes are right without a call.
var dropReasons = []drops.Reason{
	{
		Text: "the parameters of the model are not changed",
		Site: `< cudaipc.\(\*work\).finish < .* < dist_test.linear.forward`,
	},
	{
		Text: "the host waits for the goroutine that delivers the bytes, which waits for an event of its own",
		Site: `^cudaipc.\(\*Stream\).Record < cudaipc.\(\*Stream\).Synchronize < ops.\(\*Engine\).toHost`,
	},
}
