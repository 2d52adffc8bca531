//go:build !unix

package bench

import "time"

// cpuTime returns 0, since the CPU time of this process is unknown on this system.
func cpuTime() time.Duration { return 0 }
