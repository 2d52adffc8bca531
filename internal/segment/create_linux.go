package segment

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// name shows in /proc, and is that of TensorPipe in C++.
const name = "tensorpipe_shm"

// fixed are the seals of a segment whose size nobody can change. The last of
// them forbids further ones, so that a peer cannot make it read-only either.
const fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

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

// newFile makes the file that is the memory, still empty.
func newFile(size int64, sealed bool) (*os.File, error) {
	flags := unix.MFD_CLOEXEC
	if sealed {
		flags |= unix.MFD_ALLOW_SEALING
	}
	step.Here()
	fd, err := unix.MemfdCreate(name, flags)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return nil, probe.NotSupported("shared memory", "memfd_create: %v", err)
	case err != nil:
		return nil, failed("memfd_create", size, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// newSegment gives an empty file its size and pages for those parts, and maps it.
func newSegment(f *os.File, size int64, sealed bool, parts []Extent) (s *Segment, err error) {
	ctlErr := control(f, func(fd int) {
		step.Here()
		if err = setAside(fd, size, parts); err != nil {
			return
		}
		if sealed {
			step.Here()
			if _, e := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, fixed); e != nil {
				err = failed("fcntl F_ADD_SEALS", size, e)
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

// stride is the number of bytes that are set aside at a time. A signal undoes
// the call in which it comes, such as those of a profiler, so a call is short.
const stride = 8 << 20

// setAside makes the file so large and gives the parts pages, so that it is here that
// a lack of them shows, and not at the first touch.
func setAside(fd int, size int64, parts []Extent) error {
	if err := unix.Ftruncate(fd, size); err != nil {
		return failed("ftruncate", size, err)
	}
	for _, part := range parts {
		at, end := int64(part.At), int64(part.At+part.Length)
		for at < end {
			n := min(stride, end-at)
			switch err := unix.Fallocate(fd, 0, at, n); {
			case err == nil:
				at += n
			case !errors.Is(err, unix.EINTR):
				return failed("fallocate", size, err)
			}
		}
	}
	return nil
}
