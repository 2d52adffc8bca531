package bench

import (
	"runtime"
	"runtime/debug"
	"time"
)

// usage is what a process takes.
type usage struct {
	// CPU time before and after the rest was found out, which takes some.
	Before time.Duration `json:"before_ns"`
	After  time.Duration `json:"after_ns"`

	Resident    int `json:"resident_bytes"` // 0 where the system does not say
	Pages       int `json:"pages_bytes"`    // of shared pages the part of this process, and page tables; likewise
	Descriptors int `json:"descriptors"`    // likewise
	Mapped      int `json:"mapped_bytes"`   // memory of package shm; likewise
	Shared      int `json:"shared_bytes"`   // what of it has pages; likewise
	Threads     int `json:"threads"`        // likewise
}

// ownUsage is that of this process, when it has given back to the system what
// it does not need.
func ownUsage() usage {
	u := usage{Before: cpuTime()}
	runtime.GC()
	debug.FreeOSMemory()
	u.Resident, u.Descriptors = residentBytes(), descriptors()
	u.Pages = pageBytes()
	u.Mapped, u.Shared = sharedBytes()
	u.Threads = threads()
	u.After = cpuTime()
	return u
}
