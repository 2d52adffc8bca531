package segment

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

func open(f *os.File, limit int64) (s *Segment, err error) {
	if ctlErr := control(f, func(fd int) { s, err = openFD(fd, limit) }); ctlErr != nil {
		return nil, ctlErr
	}
	return s, err
}

func openFD(fd int, limit int64) (*Segment, error) {
	if err := checkKind(fd); err != nil {
		return nil, err
	}
	// Seals first: they stay, so a size that is read after them stays as well.
	sealed := cannotShrink(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, failed("fstat", 0, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%w: a file of mode %#o", ErrFile, st.Mode)
	}
	limit = min(limit, math.MaxInt)
	if st.Size < 1 || st.Size > limit {
		return nil, &SizeError{Size: st.Size, Limit: limit}
	}
	return mapFile(fd, st.Size, sealed)
}

// checkKind refuses what is no memory. A page of any other file may take as long
// to come as the peer wants, if it is the peer that serves the file system. Huge
// pages of a memfd can run out, which a seal does not prevent.
func checkKind(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return failed("fstatfs", 0, err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: a file system of type %#x", ErrFile, fs.Type)
	}
	return nil
}

// cannotShrink reports whether the size of a file is sealed. Files without seals
// say EINVAL.
func cannotShrink(fd int) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_SHRINK != 0
}

func mapFile(fd int, size int64, sealed bool) (*Segment, error) {
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
