package cma_test

import (
	"encoding/binary"
	"log/slog"
	"os"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// What userfaultfd is told by ioctl, see linux/userfaultfd.h.
const (
	uffdAPI      = 0xc018aa3f
	uffdRegister = 0xc020aa00
	uffdVersion  = 0xaa
	uffdMissing  = 1
)

// withheld is memory that never arrives: whoever touches it waits until release.
func withheld(t *testing.T, size int) (memory []byte, release func()) {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Skip("userfaultfd: " + errno.Error())
	}
	memory = mapped(t, size)
	release = sync.OnceFunc(func() { _ = unix.Close(int(fd)) })
	t.Cleanup(release)
	tell(t, fd, uffdAPI, []uint64{uffdVersion, 0, 0})
	tell(t, fd, uffdRegister, []uint64{address(memory), uint64(size), uffdMissing, 0})
	return memory, release
}

func tell(t *testing.T, fd, what uintptr, words []uint64) {
	t.Helper()
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, what, uintptr(unsafe.Pointer(&words[0])))
	require.Zero(t, errno, "%v", errno)
}

// mapped is memory that stays where it is.
func mapped(t *testing.T, size int) []byte {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	return memory
}

// receiving makes a new end receive memory of the test, of which the offer holds as
// long as the word is 5.
func receiving(t *testing.T, f *cma.Factory, word, memory []byte) (dst []byte, err <-chan error) {
	t.Helper()
	ch, far := endOf(t, f)
	dst = make([]byte, len(memory))
	done, err := result()
	ch.Recv(1, device.Bytes(dst), done)
	write(t, far, offer(os.Getpid(), 1, address(word), 5, address(memory), uint64(len(memory))))
	return dst, err
}

// endOf makes an end of the native dialect.
func endOf(t *testing.T, f *cma.Factory) (channel.Channel, transport.Conn) {
	t.Helper()
	near, far := connections(t, true)
	ch, err := f.New(t.Context(), channel.Link{
		Native: true, Conns: near, Peer: "worker1", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, far[0]
}

// Peers whose memory never arrives keep nobody but the channels to them waiting,
// however many they are.
func TestMemoryThatNeverArrives(t *testing.T) {
	const size = 8 << 20
	f := cma.New(cma.Options{Workers: 2})
	word, src := mapped(t, 8), mapped(t, size)
	binary.NativeEndian.PutUint64(word, 5)
	copy(src, "arrives")
	memory, release := withheld(t, size)
	defer release() // before the ends close, which wait for it
	var waiting []<-chan error
	for range 4 {
		_, err := receiving(t, f, word, memory)
		waiting = append(waiting, err)
		dst, err := receiving(t, f, word, src) // while that one takes what it can get
		require.NoError(t, <-err)
		require.Equal(t, "arrives", string(dst[:7]))
	}
	for _, err := range waiting {
		require.Empty(t, err)
	}
	release()
	for _, err := range waiting {
		require.NoError(t, <-err)
	}
}
