package rref_test

import (
	"testing"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDropsOfCuda proves that the cases of references on GPUs need each record and wait of an event.
func TestDropsOfCuda(t *testing.T) {
	cusim.Library(t) // skips t if there is none
	drops.Suite{Tests: "^TestParityCuda", Redundant: dropReasons}.Prove(t)
}

var dropReasons = []drops.Reason{}
