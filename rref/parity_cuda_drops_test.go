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
		Text: "the parameters of the model are not changed",
		Site: `< cudaipc.\(\*work\).finish < .* < rref_test.\(\*(convNet|linear)\).forward`,
	},
	{
		Text: "it orders the reuse of freed memory of another GPU, and the memory is not freed",
		Site: `< cudaipc.\(\*copyOperation\).finish < cudaipc.\(\*Kind\).Copy < xth.enqueueCopy <`,
	},
}
