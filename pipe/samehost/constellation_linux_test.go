package samehost_test

import (
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// constellation is a dialect, and which end the child is.
type constellation struct {
	dialect string
	listens bool
}

// constellations lists them all. Under the race detector, with which a child takes
// a second to start, it is two with both dialects and both ends in them, others for
// odd turns than for even ones.
func constellations(turn int) (all []constellation) {
	for i, dialect := range []string{pipe.DialectCompatible, pipe.DialectNative} {
		for j, listens := range []bool{false, true} {
			if !race.Enabled || (turn+i+j)%2 == 0 {
				all = append(all, constellation{dialect, listens})
			}
		}
	}
	return all
}

// child says which end it is, for the names of tests.
func (c constellation) child() string {
	if c.listens {
		return "child listens"
	}
	return "child dials"
}
