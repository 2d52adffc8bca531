package cma

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// Constants of the ioctl calls and messages of userfaultfd, see linux/userfaultfd.h.
const (
	uffdAPI       = 0xc018aa3f
	uffdRegister  = 0xc020aa00
	uffdVersion   = 0xaa
	uffdMissing   = 1
	uffdSaid      = 32 // bytes of a message
	uffdAddressAt = 16
)

// Withheld is memory whose pages are missing: an access blocks until Release.
type Withheld struct {
	Memory []byte
	fd     int
	once   sync.Once
}

// Withhold returns size bytes of memory, accesses to which block until Release. It skips the test
// if the kernel does not permit userfaultfd. The memory is released at the end of the test at the
// latest.
func Withhold(t *testing.T, size int) *Withheld {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Skip("userfaultfd: " + errno.Error())
	}
	w := &Withheld{Memory: Mapped(t, size), fd: int(fd)}
	t.Cleanup(w.Release)
	w.tell(t, uffdAPI, []uint64{uffdVersion, 0, 0})
	w.tell(t, uffdRegister, []uint64{segmentOf(w.Memory).address, uint64(size), uffdMissing, 0})
	return w
}

func (w *Withheld) tell(t *testing.T, what uintptr, outgoing []uint64) {
	t.Helper()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), what, uintptr(unsafe.Pointer(&outgoing[0])))
	require.Zero(t, errno, "%v", errno)
}

// Touched waits until an access to the memory blocks, and returns the offset of the page in the
// memory. The test fails if none does within testwait.Limit.
func (w *Withheld) Touched(t *testing.T) int {
	t.Helper()
	var said [uffdSaid]byte
	polled := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	for begin := time.Now(); time.Since(begin) < testwait.Limit; {
		_, _ = unix.Poll(polled, int(time.Second/time.Millisecond))
		_, err := unix.Read(w.fd, said[:])
		if err == nil {
			return int(binary.NativeEndian.Uint64(said[uffdAddressAt:]) - segmentOf(w.Memory).address)
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			require.NoError(t, err)
		}
	}
	require.Fail(t, "nobody touches it")
	return 0
}

// Release lets all accesses to the memory continue, those that block and later ones. Further calls
// do nothing.
func (w *Withheld) Release() { w.once.Do(func() { _ = unix.Close(w.fd) }) }

// Mapped returns size bytes of new anonymous memory outside the Go heap, which are unmapped at the
// end of the test.
func Mapped(t *testing.T, size int) []byte {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	return memory
}
