package wait

import "golang.org/x/sys/unix"

// quietBytes is the number of bytes from which on arrivals wake a thread while a goroutine reads or
// polls, and quietLong that of a SocketPoller which has received more than quietBytes at once, as parts of long
// messages do. The kernel makes the buffer of the socket at least twice as large, for good; that of a new
// socket has 128 KiB in most systems.
const (
	quietBytes = 64 << 10
	quietLong  = 512 << 10
)

// lowWater is the number of bytes from which on the kernel reports a socket as readable (SO_RCVLOWAT), its end
// and errors always.
//
// The network poller of the runtime hears of each arrival on a socket, also while a goroutine reads or
// polls it without blocking: a thread wakes, finds nothing to do, and has taken a processor from
// another one for 10 µs. So the number is high at such times, and low while a goroutine blocks.
// When it becomes lower the kernel checks again, so no arrival is missed. Read(2) is not affected, but poll(2)
// and epoll are, so no other code may wait for the socket. The zero value is that of a new socket, one byte.
type lowWater struct{ bytes int }

// set changes the number of bytes of the socket fd to n.
func (l *lowWater) set(fd uintptr, n int) {
	if n != max(l.bytes, 1) && unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) == nil {
		l.bytes = n
	}
}

// hasInput reports whether the socket fd has input, however little, its end or an error, or cannot be asked.
// It takes none of these: recv(2) would take an error, even with MSG_PEEK, and poll(2) alone
// does not see less than the number of lowWater.
func hasInput(fd uintptr) bool {
	if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); n > 0 || err != nil {
		return true
	}
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p[:], 0)
	return n != 0 || err != nil // also if it was interrupted: the caller tries to read
}
