//go:build !unix

package bench

import "time"

// cpuTime is unknown here.
func cpuTime() time.Duration { return 0 }
