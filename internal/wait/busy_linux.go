package wait

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rest blocks the thread for restFor. A timer of the runtime would be late by up to a millisecond on
// an idle processor.
func rest() {
	limit := unix.NsecToTimespec(int64(restFor))
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &limit, nil) // a signal may end it early
}

// visitor makes the runtime ask the kernel for input of sockets: it blocks in the network poller on
// a descriptor that becomes readable at that moment. If the system denies that descriptor, it does
// nothing. The zero value is ready.
type visitor struct {
	denied bool
	file   *os.File // an eventfd
	raw    syscall.RawConn
}

// visit returns once the runtime has asked.
func (v *visitor) visit() {
	if v.raw == nil && !v.open() {
		return
	}
	blocked := false
	_ = v.raw.Read(func(fd uintptr) bool {
		var count [8]byte
		if blocked {
			_, _ = unix.Read(int(fd), count[:])
			return true
		}
		blocked = true
		count[0] = 1
		_, err := unix.Write(int(fd), count[:])
		return err != nil // nothing would wake it
	})
}

// open creates the descriptor, unless that has failed before, and reports whether there is one.
func (v *visitor) open() bool {
	if v.denied {
		return false
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		v.denied = true
		return false
	}
	v.file = os.NewFile(uintptr(fd), "eventfd")
	raw, err := v.file.SyscallConn()
	if v.denied = err != nil || v.file.SetReadDeadline(time.Time{}) != nil; v.denied {
		return false // it is not in the network poller
	}
	v.raw = raw
	return true
}

func (v *visitor) close() {
	if v.file != nil {
		_ = v.file.Close()
	}
}
