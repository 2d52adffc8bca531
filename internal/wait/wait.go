// Package wait decides which goroutines spin before they block, and for how long.
//
// A goroutine that reads from a socket blocks in the runtime's network poller. Blocking costs
// nothing, but waking is expensive: at either end an idle processor has to leave its halt state, so
// that a round trip takes 50 to 150 µs, of which the bytes take 8. A goroutine that waits for a
// reply should therefore poll for it, and block only when it does not come. A [Reader] does that, and a
// [SocketPoller] for a socket on which any goroutine may poll and one waits.
//
// # How readers spin
//
// Between two polls a Reader lets the goroutines of its process run (runtime.Gosched). The reply
// may depend on a goroutine of this process; a spin that kept the processor from it would wait for
// itself.
//
// A Reader yields to other threads (sched_yield) only if the process has one processor
// (GOMAXPROCS). In a process with an idle second processor, each such yield makes the runtime wake a
// thread, which would take over the goroutines; the reply would then travel between threads that
// block and wake. While the spinning thread keeps its processor, that thread does not get the
// goroutines.
//
// A [MemoryPoller] spins until memory changes, in which the kernel has no part. It polls for some
// microseconds without a system call. After that it yields to other threads between polls: if more
// threads are busy than there are processors, the process that is to make the change may be waiting
// for this processor. With ten busy threads on two processors a round trip took 6 to 10 µs with the
// yields, and 50 to 300 µs without. While its yields show that more threads spin than there are
// processors, it polls less before it yields. In a process with one processor it lets goroutines run
// between polls. With more it does not: for each that could run, the runtime would wake a thread,
// which takes a processor from the peer. It does so once if [GoroutineStarted] was called.
//
// Two processes that wait for each other without blocking may run on one processor while another
// one is idle, and the kernel leaves them there. Each change then takes a switch between them, 5 µs
// for a round trip instead of 2, and of two that copy much each stops while the other one copies. A
// MemoryPoller recognizes that by changes that come right after its yields, and by yields that take
// long. It then moves its thread to another processor, by setting the thread's affinity.
//
// # When readers do not spin
//
// A spin that finds nothing has taken time from another goroutine, another process or the battery.
// Hence:
//
//   - A spin is bounded by a time, which is a setting.
//   - Spins that find nothing become rare: after each, twice as many waits as before do not spin.
//     That keeps spins from harm on a machine with more busy threads than processors, where
//     replies do not come during a spin, and on sockets with occasional messages.
//   - Only the goroutines of one reader of a process spin at a time, or two of memory, and only if for some time
//     nothing arrived for others. A spin for one of several readers would delay the others: the
//     kernel is not asked for their input during it. If the process has one processor, two sockets
//     may be spun on: the spin on one asks the kernel about the other too, and ends if that has
//     input. A reader of memory that may not spin alone may spin for all, see [SharedWaiter].
//
// A socket without traffic costs nothing.
//
// # Busy polling
//
// A goroutine that must not sleep, because waking takes too long, waits as a [BusyWaiter] where it
// would block: one goroutine of the process polls for all of these, for as long as any of them
// waits.
package wait

import (
	"net"
	"syscall"
	"time"
)

// Spin is the default bound of a spin. It is longer than the other end may take to wake. With a
// shorter one, two ends that answer each other would block in turn, each because the other one is
// blocked: every spin would find nothing, and so spins would become rare. On a virtual machine a
// wake-up takes 50 to 150 µs.
const Spin = 200 * time.Microsecond

// Config determines how a goroutine waits.
type Config struct {
	Spin time.Duration // the longest time that it spins; 0 or less: it does not
	Busy bool          // after that it waits with busy polling, see BusyWaiter
}

// Socket is a connection of package net that has a descriptor, such as a [*net.TCPConn] or a
// [*net.UnixConn].
type Socket interface {
	net.Conn
	syscall.Conn
}
