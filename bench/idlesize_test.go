package bench

import "github.com/tensorpipe-go/tensorpipe/internal/testutil/race"

// maxResidentMiB bounds the memory of a process with a hundred pipes. The race detector needs much
// additional memory.
var maxResidentMiB = race.Pick(300, 1200)

// maxMessageBytes is the largest message that idle pipes have carried in tests; larger ones would
// take a minute under the race detector.
var maxMessageBytes = race.Pick(16<<20, 3_000_000)
