package segment

import (
	"errors"
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// name is the name of the file in /proc, the same as in TensorPipe.
const name = "tensorpipe_shm"

// sizeSeals are the seals of a segment of fixed size. F_SEAL_SEAL forbids further seals, so that a
// peer cannot make the segment read-only.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func create(size int, sealed bool, parts ...Extent) (*Segment, error) {
	if size < 1 {
		return nil, &SizeError{Size: int64(size), Limit: math.MaxInt}
	}
	f, err := newFile(int64(size), sealed)
	if err != nil {
		return nil, err
	}
	s, err := newSegment(f, int64(size), sealed, parts)
	if err != nil {
		f.Close()
		return nil, err
	}
	s.file = f
	return s, nil
}

// newFile creates an empty memory file, to which seals can be added if sealed is true. The caller
// closes it. size only appears in the text of an error. The error is an *Error, or matches
// errors.ErrUnsupported if the system has no memory files.
func newFile(size int64, sealed bool) (*os.File, error) {
	flags := unix.MFD_CLOEXEC
	if sealed {
		flags |= unix.MFD_ALLOW_SEALING
	}
	failpoint.Here()
	fd, err := unix.MemfdCreate(name, flags)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return nil, probe.NotSupported("shared memory", "memfd_create: %v", err)
	case err != nil:
		return nil, systemError("memfd_create", size, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// newSegment sets the size of the empty file f, reserves pages for parts, seals the file if sealed
// is true, and maps it. The caller keeps f; s does not refer to it. The error is an *Error; nothing
// is mapped then.
func newSegment(f *os.File, size int64, sealed bool, parts []Extent) (s *Segment, err error) {
	ctlErr := withFD(f, func(fd int) {
		failpoint.Here()
		if err = reserveFile(fd, size, parts); err != nil {
			return
		}
		if sealed {
			failpoint.Here()
			if _, e := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals); e != nil {
				err = systemError("fcntl F_ADD_SEALS", size, e)
				return
			}
		}
		s, err = mapFile(fd, size, sealed)
	})
	if ctlErr != nil {
		return nil, ctlErr
	}
	return s, err
}

// fallocateStep is the number of bytes that one call reserves. A signal, such as those of a
// profiler, undoes the call that it interrupts, so calls must be short.
const fallocateStep = 8 << 20

// reserveFile sets the size of the file fd in bytes and reserves pages for parts of it. A lack of
// memory is then an *Error here and not a fault at the first access.
func reserveFile(fd int, size int64, parts []Extent) error {
	if err := unix.Ftruncate(fd, size); err != nil {
		return systemError("ftruncate", size, err)
	}
	for _, part := range parts {
		at, end := int64(part.Offset), int64(part.Offset+part.Length)
		for at < end {
			n := min(fallocateStep, end-at)
			switch err := unix.Fallocate(fd, 0, at, n); {
			case err == nil:
				at += n
			case !errors.Is(err, unix.EINTR):
				return systemError("fallocate", size, err)
			}
		}
	}
	return nil
}

var pageSize = os.Getpagesize()

func open(f *os.File, limit int64) (s *Segment, err error) {
	ctlErr := withFD(f, func(fd int) {
		// Seals first: they cannot be removed, so a size that is read after them is final.
		var sealed bool
		if sealed, err = checkKind(fd); err != nil {
			return
		}
		var st unix.Stat_t
		if e := unix.Fstat(fd, &st); e != nil {
			err = systemError("fstat", 0, e)
			return
		}
		limit = min(limit, math.MaxInt)
		if st.Size < 1 || st.Size > limit {
			err = &SizeError{Size: st.Size, Limit: limit}
			return
		}
		s, err = mapFile(fd, st.Size, sealed)
	})
	if ctlErr != nil {
		return nil, ctlErr
	}
	return s, err
}

// checkKind checks that fd is shared memory, and reports whether its file is sealed against
// truncation. The error matches ErrFile if fd is anything else, or memory of huge pages, and is an
// *Error if a system call fails.
//
// The peer could itself serve the file system of an ordinary file, and delay any operation on it.
// The kernel answers the query for seals itself, and only for memory files.
func checkKind(fd int) (sealed bool, err error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, fmt.Errorf("%w: it cannot be sealed", ErrFile)
	}
	if err != nil {
		return false, systemError("fcntl F_GET_SEALS", 0, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false, systemError("fstatfs", 0, err)
	}
	// Huge pages of hugetlbfs can be exhausted in spite of seals.
	if fs.Type != unix.TMPFS_MAGIC {
		return false, fmt.Errorf("%w: a file system of type %#x", ErrFile, fs.Type)
	}
	return seals&unix.F_SEAL_SHRINK != 0, nil
}

func mapFile(fd int, size int64, sealed bool) (*Segment, error) {
	failpoint.Here()
	memory, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, systemError("mmap", size, err)
	}
	return &Segment{memory: memory, sealed: sealed}, nil
}

func unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	failpoint.Here()
	return systemError("munmap", int64(len(memory)), unix.Munmap(memory))
}

// withFD runs f with the descriptor of file, which stays open for the call. Unlike File.Fd it does
// not put the file into blocking mode. The error is an *Error that matches os.ErrClosed if file is
// closed; f is not run then.
func withFD(file *os.File, f func(fd int)) error {
	raw, err := file.SyscallConn()
	if err == nil && raw.Control(func(fd uintptr) { f(int(fd)) }) != nil {
		err = os.ErrClosed // the same error for all ways in which a file is closed
	}
	return systemError("descriptor", 0, err)
}

// systemError wraps err in an *Error with the name of the system call that has returned it and the
// size of the segment in bytes. It returns nil if err is nil.
func systemError(call string, size int64, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Call: call, Size: size, Err: err}
}

// madvise holds the advices as the kernel knows them, and their names for errors.
var madvise = [...]struct {
	name   string
	number int
}{
	populateWrite: {"MADV_POPULATE_WRITE", unix.MADV_POPULATE_WRITE},
	populateRead:  {"MADV_POPULATE_READ", unix.MADV_POPULATE_READ},
	remove:        {"MADV_REMOVE", unix.MADV_REMOVE},
}

// advise calls madvise with the advice a for the pages that overlap memory or, to release pages,
// for those that lie entirely within memory. If there are none it does nothing. The error is an
// *Error, or matches errors.ErrUnsupported if the kernel does not know the advice.
func advise(a pageAdvice, memory []byte) error {
	pages := pagesAround(memory)
	if a == remove {
		pages = pagesWithin(memory)
	}
	if len(pages) == 0 {
		return nil
	}
	failpoint.Here()
	for {
		switch err := unix.Madvise(pages, madvise[a].number); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL):
			return probe.NotSupported("shared memory that grows", "madvise %s: %v", madvise[a].name, err)
		default:
			return systemError("madvise "+madvise[a].name, int64(len(pages)), err)
		}
	}
}

// pagesAround returns the memory of all pages that overlap the argument, which must lie in a
// mapping. The result may begin before it and end after it. It is nil if the argument is empty.
func pagesAround(memory []byte) []byte {
	if len(memory) == 0 {
		return nil
	}
	before := int(uintptr(unsafe.Pointer(&memory[0])) % uintptr(pageSize))
	n := before + len(memory)
	n += -n & (pageSize - 1)
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&memory[0]), -before)), n)
}

// pagesWithin returns the part of memory that consists of whole pages, without a copy. It is nil or
// empty if there is none.
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
