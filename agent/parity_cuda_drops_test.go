package agent_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda runs the cases of device maps and streams without each record and wait of an event. It is left
// out by default, because some redundant calls have no reason yet, and because two runs of a case with
// several workers make different calls.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{Tests: "^TestParityCuda(Maps|Streams|Async)$"}.Prove(t)
}
