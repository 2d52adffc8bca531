package shm

import (
	"time"

	"golang.org/x/sys/unix"
)

// A pause between two looks for tokens is a part of the time since the last one
// came, so that no answer comes late by more than a little of what it took.
const pausePart = 64

// pace says how soon to look again.
type pace struct {
	spin, longest time.Duration
	last          time.Time // a token came, or is due
	now           time.Time
}

func newPace(spin, longest time.Duration) *pace {
	now := time.Now()
	return &pace{spin: spin, longest: longest, last: now, now: now}
}

// look takes the time of a look, and whether that found anything.
func (p *pace) look(found bool) {
	p.now = time.Now()
	if found {
		p.last = p.now
	}
}

// hasty reports whether there is to be no pause.
func (p *pace) hasty() bool { return p.now.Sub(p.last) < p.spin }

func (p *pace) pause() time.Duration {
	return min(max(p.now.Sub(p.last)/pausePart, firstPause), p.longest)
}

// alarm ends a rest. The rest is one of the kernel's: where nothing else runs,
// timers of the runtime are late by up to a millisecond.
type alarm struct {
	fd     int // an eventfd
	polled []unix.PollFd
}

func newAlarm() (*alarm, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return &alarm{fd: fd, polled: []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}}, nil
}

// ring fails only where the alarm has been rung for very often.
func (a *alarm) ring() {
	once := [8]byte{1}
	_, _ = unix.Write(a.fd, once[:])
}

// rest reports whether the alarm ended it.
func (a *alarm) rest(d time.Duration) bool {
	limit := unix.NsecToTimespec(d.Nanoseconds())
	n, err := unix.Ppoll(a.polled, &limit, nil)
	if n <= 0 || err != nil {
		return false
	}
	var rung [8]byte
	_, _ = unix.Read(a.fd, rung[:])
	return true
}

func (a *alarm) close() { _ = unix.Close(a.fd) }
