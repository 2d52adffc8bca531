//go:build !unix

package bench

import "time"

// cpuTime returns 0, because this system does not report the CPU time of the process.
func cpuTime() time.Duration { return 0 }
