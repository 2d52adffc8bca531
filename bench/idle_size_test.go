package bench

import "github.com/tensorpipe-go/tensorpipe/internal/race"

// mostResident, in MiB, is what a process with a hundred pipes may hold. The race
// detector holds much beside.
var mostResident = race.Pick(300, 1200)

// mostCarried is the largest message that idle pipes have carried in tests: with
// larger ones they take a minute under the race detector.
var mostCarried = race.Pick(16<<20, 3_000_000)
