package interop

import "github.com/tensorpipe-go/tensorpipe/internal/race"

// large is what no connection or ring takes in at once; 16 MiB is still many times
// as much, and the race detector watches every byte.
var large = race.Pick(64<<20, 16<<20)
