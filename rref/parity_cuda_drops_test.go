package rref_test

import (
	"strings"
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda runs the cases of references on GPUs without each record and wait of an event. It is left out by
// default, because some calls of the cases in one process have no reason yet.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{
		Tests: "^TestParityCuda", Redundant: dropReasons,
		Skip: func(scenario string) bool { return strings.Contains(scenario, "missing_config") }, // no tensor is received
	}.Prove(t)
}

// dropReasons are the reasons why bytes are right without a call.
var dropReasons = []drops.Reason{
	{
		Text:     "the tensor that is summed is not changed",
		Scenario: `owner_rref_forward`, Site: `< cudaipc.\(\*work\).finish < cudaipc.\(\*Kind\).run < cudaipc.kernels.Sum <`,
	},
}
