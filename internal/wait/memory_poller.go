package wait

import (
	"runtime"
	"time"
)

// MemoryPoller polls memory that another process changes. One goroutine at a time uses it. It is
// registered with the spin arbiter of the process, as Readers are, which decides whether it may
// poll.
type MemoryPoller struct{ spinner spinner }

// NewMemoryPoller returns a MemoryPoller whose Poll polls for at most the time spin, after which
// the caller should block. With 0 or less it never polls.
func NewMemoryPoller(spin time.Duration) *MemoryPoller {
	epoch := time.Now()
	return &MemoryPoller{spinner{
		bound:        spin,
		placement:    new(placement),
		registration: &registration{arbiter: &process},
		busy:         busy,
		now:          func() time.Duration { return time.Since(epoch) },
		yield:        yieldThread,
	}}
}

// Poll calls ready until ready returns true, the time to poll ends, or more than one other connection
// of the process has input. It reports whether ready returned true. If Poll returns false the
// caller should block. It returns false at once, without a call of ready, if the goroutine may not
// poll now.
func (m *MemoryPoller) Poll(ready func() bool) bool { return m.spinner.poll(ready) }

// PollForAll does what Poll does. If the goroutine may not poll alone, for example because two other
// connections have input, it polls for the SharedWaiters of the process too, until one of these is ready; it
// then wakes that, and returns false. Only one goroutine at a time polls for all, only if there are two of
// these, and not for a while after such polls that have found nothing.
func (m *MemoryPoller) PollForAll(ready func() bool) bool {
	if m.spinner.registration.exclusive() {
		return m.spinner.poll(ready)
	}
	return processWaiters.spin(&m.spinner, ready)
}

// PollDue calls ready until ready returns true or the time to poll ends, and reports whether ready
// returned true. It is for a change that should come soon, such as a reply: unlike Poll it polls
// even while other connections of the process are active. It returns false without a call of ready
// if m never polls, if another goroutine is in PollDue, or for a while after polls that have found
// nothing.
func (m *MemoryPoller) PollDue(ready func() bool) bool { return m.spinner.pollDue(ready) }

// Arrived records that the change for which the caller waited has come, whether Poll found it or
// not. Poll polls only if all recent arrivals of the process were for this MemoryPoller or its
// clones, or for one other reader.
func (m *MemoryPoller) Arrived() { m.spinner.registration.arrived() }

// Clone returns a MemoryPoller for another goroutine with the same time to poll. Both share one
// registration with the spin arbiter: an arrival for one of them counts for both.
func (m *MemoryPoller) Clone() *MemoryPoller {
	s := m.spinner
	s.backoff = backoff{}
	s.placement = new(placement)
	return &MemoryPoller{s}
}

// StopWhen makes Poll return false early when stop returns true, and returns m. PollDue does not call stop.
func (m *MemoryPoller) StopWhen(stop func() bool) *MemoryPoller {
	m.spinner.stop = stop
	return m
}

// longerSpin is the factor of SpinLonger.
const longerSpin = 4

// SpinLonger makes m poll four times as long before it gives up, and returns m. That is useful if
// the peer may have to be woken before it can make the change, which takes longer than the usual
// time to poll.
func (m *MemoryPoller) SpinLonger() *MemoryPoller {
	m.spinner.bound *= longerSpin
	return m
}

// pollsPerGosched is the number of polls of memory for each one before which goroutines run.
const pollsPerGosched = 64

// Yielder yields the processor between two polls of memory. One goroutine uses it. The zero value
// is ready.
type Yielder struct{ polls int }

// Yield yields the processor to another thread. Once in pollsPerGosched calls it yields to other
// goroutines of this process instead.
func (y *Yielder) Yield() {
	y.polls++
	if y.polls%pollsPerGosched == 1 {
		runtime.Gosched()
		return
	}
	yieldThread()
}
