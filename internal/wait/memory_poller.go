package wait

import (
	"runtime"
	"time"
)

// MemoryPoller polls memory that another process changes. One goroutine at a time uses it. It is
// registered with the spin arbiter of the process, as Readers are, which decides whether it may
// poll.
type MemoryPoller struct{ spinner spinner }

// NewMemoryPoller returns a MemoryPoller that polls for at most spin before its user should block.
// With 0 or less it never polls.
func NewMemoryPoller(spin time.Duration) *MemoryPoller {
	epoch := time.Now()
	return &MemoryPoller{spinner{
		bound:        spin,
		placement:    new(placement),
		registration: process.register(),
		now:          func() time.Duration { return time.Since(epoch) },
		yield:        yieldThread,
	}}
}

// Poll calls ready until it returns true or the time to poll ends, and reports whether ready
// returned true. If Poll returns false the caller should block; Poll may not have called ready at
// all.
func (m *MemoryPoller) Poll(ready func() bool) bool { return m.spinner.poll(ready) }

// PollDue is Poll for a change that should come soon, such as a reply. It polls even while other
// connections of the process are active, but returns false at once if another goroutine is in
// PollDue.
func (m *MemoryPoller) PollDue(ready func() bool) bool { return m.spinner.pollDue(ready) }

// Arrived records that the change for which the caller waited has come, whether Poll found it or
// not. The arbiter permits a MemoryPoller to poll if all recent arrivals of the process were for
// it.
func (m *MemoryPoller) Arrived() { m.spinner.registration.arrived() }

// Clone returns a MemoryPoller for another goroutine with the same time to poll. It shares m's
// registration with the arbiter: an arrival for one of them counts for both.
func (m *MemoryPoller) Clone() *MemoryPoller {
	s := m.spinner
	s.backoff = backoff{}
	s.placement = new(placement)
	return &MemoryPoller{s}
}

// longerSpin is the factor of SpinLonger.
const longerSpin = 4

// SpinLonger makes m poll four times as long, and returns m. That is useful if the peer may have to
// be woken before it can make the change, which takes longer than the usual time to poll.
func (m *MemoryPoller) SpinLonger() *MemoryPoller {
	m.spinner.bound *= longerSpin
	return m
}

// pollsPerGosched is the number of polls of memory for each one before which goroutines run.
const pollsPerGosched = 64

// Yielder yields the processor between two polls of memory. One goroutine uses it. The zero value
// is ready.
type Yielder struct{ polls int }

// Yield yields the processor to another thread or, once in pollsPerGosched calls, to another
// goroutine of this process.
func (y *Yielder) Yield() {
	y.polls++
	if y.polls%pollsPerGosched == 1 {
		runtime.Gosched()
		return
	}
	yieldThread()
}
