package segment

import (
	"errors"
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

var pageSize = os.Getpagesize()

func open(f *os.File, limit int64) (s *Segment, err error) {
	if ctlErr := control(f, func(fd int) { s, err = openFD(fd, limit) }); ctlErr != nil {
		return nil, ctlErr
	}
	return s, err
}

func openFD(fd int, limit int64) (*Segment, error) {
	// Seals first: they stay, so a size that is read after them stays as well.
	sealed, err := checkKind(fd)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, failed("fstat", 0, err)
	}
	limit = min(limit, math.MaxInt)
	if st.Size < 1 || st.Size > limit {
		return nil, &SizeError{Size: st.Size, Limit: limit}
	}
	return mapFile(fd, st.Size, sealed)
}

// checkKind refuses what is no memory, and reports whether its size is sealed.
//
// The peer may itself serve the file system that a file is on, and take as long as
// it wants with a page of it, or with anything else that the file is asked. The
// question for seals the kernel answers itself, for memory only.
func checkKind(fd int) (sealed bool, err error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, fmt.Errorf("%w: it cannot be sealed", ErrFile)
	}
	if err != nil {
		return false, failed("fcntl F_GET_SEALS", 0, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false, failed("fstatfs", 0, err)
	}
	// Huge pages, set aside for all processes, can run out in spite of seals.
	if fs.Type != unix.TMPFS_MAGIC {
		return false, fmt.Errorf("%w: a file system of type %#x", ErrFile, fs.Type)
	}
	return seals&unix.F_SEAL_SHRINK != 0, nil
}

func mapFile(fd int, size int64, sealed bool) (*Segment, error) {
	step.Here()
	memory, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, failed("mmap", size, err)
	}
	return &Segment{memory: memory, sealed: sealed}, nil
}

func unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	step.Here()
	return failed("munmap", int64(len(memory)), unix.Munmap(memory))
}

// control runs f with the descriptor of a file, which stays open meanwhile. The
// file keeps its mode, which Fd would change.
func control(file *os.File, f func(fd int)) error {
	raw, err := file.SyscallConn()
	if err == nil && raw.Control(func(fd uintptr) { f(int(fd)) }) != nil {
		err = os.ErrClosed // in words of its own
	}
	return failed("descriptor", 0, err)
}

// failed wraps the error of a system call, if there is one.
func failed(call string, size int64, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Call: call, Size: size, Err: err}
}

func reserve(memory []byte) error {
	return advise("MADV_POPULATE_WRITE", pagesAround(memory), unix.MADV_POPULATE_WRITE)
}

func reserveRead(memory []byte) error {
	return advise("MADV_POPULATE_READ", pagesAround(memory), unix.MADV_POPULATE_READ)
}

func release(memory []byte) error {
	return advise("MADV_REMOVE", pagesWithin(memory), unix.MADV_REMOVE)
}

// advise tells the system something about pages.
func advise(what string, pages []byte, advice int) error {
	if len(pages) == 0 {
		return nil
	}
	step.Here()
	for {
		switch err := unix.Madvise(pages, advice); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL):
			return probe.NotSupported("shared memory that grows", "madvise %s: %v", what, err)
		default:
			return failed("madvise "+what, int64(len(pages)), err)
		}
	}
}

// pagesAround are the pages of which memory has a part.
func pagesAround(memory []byte) []byte {
	if len(memory) == 0 {
		return nil
	}
	before := int(uintptr(unsafe.Pointer(&memory[0])) % uintptr(pageSize))
	n := before + len(memory)
	n += -n & (pageSize - 1)
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&memory[0]), -before)), n)
}

// pagesWithin are the pages of which memory has all.
func pagesWithin(memory []byte) []byte {
	if len(memory) == 0 {
		return nil
	}
	before := int(-uintptr(unsafe.Pointer(&memory[0])) % uintptr(pageSize))
	if before >= len(memory) {
		return nil
	}
	memory = memory[before:]
	return memory[:len(memory)&^(pageSize-1)]
}
