package samehost_test

import "github.com/tensorpipe-go/tensorpipe/internal/race"

// crowdSize is how many processes there are in a crowd, and usualSize how many in one
// with no options of its own: under the race detector each takes many times as much.
var (
	crowdSize = race.Pick(64, 16)
	usualSize = race.Pick(16, 8)
)
