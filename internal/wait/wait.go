// Package wait knows who waits and who spins.
//
// A goroutine that waits for a socket sleeps in the runtime's network poller.
// That costs nothing while it lasts, but its end is expensive: a processor that
// had nothing else to do has to come out of its halt, on either side, and a
// round trip takes 50 to 150 µs of which the bytes take 8. So who waits for an answer
// that is due had better look for it, again and again, and sleep only when it
// does not come. A [Reader] does that.
//
// # How to spin
//
// Between two looks a Reader lets the goroutines of its process run
// (runtime.Gosched). What it has just handed over is theirs to answer, and a
// spin that kept a processor from them would wait for itself.
//
// It does not offer the processor to other threads (sched_yield). In a process
// with an idle second processor each hand-over makes the runtime wake a thread
// for it, which would take the goroutines over; the answer then travels between
// threads that sleep and wake. While the spinning thread keeps its processor,
// that thread does not get to it.
//
// A [Memory] spins for a change of memory, in which the kernel has no part. It
// looks for some microseconds without a call, and then offers the processor to
// other threads between looks: where more of them are busy than there are
// processors, the process that is to make the change may be waiting for this very
// one. With some ten busy threads on two processors a round trip took 6 to 10 µs
// so, and 50 to 300 µs otherwise. It does not run goroutines: the runtime wakes a
// thread for each that it could run, which then takes a processor from the peer.
//
// Two processes that wait for each other without ever sleeping may find themselves
// on one processor while another is free, and the kernel leaves them there; each
// answer then takes a switch between them, 5 µs for a round trip instead of 2, and of two
// that move much each stands still while the other copies. A Memory notices by answers
// that come right behind its yields, and by yields that take long, and moves its
// thread to another processor, by its affinity.
//
// # When not to
//
// A spin that finds nothing has taken time from somebody, be it another
// goroutine, another process or the battery. Hence:
//
//   - It is bounded by a time, which is a setting.
//   - Where spins find nothing, they become rare: after each such there is none
//     for twice as many waits as before. This is what keeps the peace on a
//     machine with more busy threads than processors, where answers do not come
//     while somebody spins, and on a socket with a message now and then.
//   - One Reader of a process spins at a time, and only one whose socket was
//     for some time the only one where anything came. Spinning for one of
//     several makes the others late: nobody asks the kernel for them meanwhile.
//
// A socket on which nothing comes costs nothing at all.
package wait

import (
	"net"
	"syscall"
	"time"
)

// Spin is for how long a spin is worth its while: longer than the other end may
// take to wake. Where it is shorter, two ends that answer each other fall asleep
// by turns, each because the other sleeps, and go on like that: every spin
// finds nothing, and with each that does they become rarer. A sleep costs 50 to
// 150 µs on a virtual machine.
const Spin = 200 * time.Microsecond

// Socket is a connection of package net that is one of the kernel's, such as a
// [*net.TCPConn] or a [*net.UnixConn].
type Socket interface {
	net.Conn
	syscall.Conn
}
