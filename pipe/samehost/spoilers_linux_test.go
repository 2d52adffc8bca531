package samehost_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
)

// spoilers take away from this process what it needs to be read, or to read, or to
// share memory.
var spoilers = map[string]func() error{
	"nothing":  func() error { return nil },
	"dumpable": func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
	"user":     becomeNobody,
	"readv":    func() error { return alone.Forbid(unix.SYS_PROCESS_VM_READV, unix.EPERM) },
	"memfd":    func() error { return alone.Forbid(unix.SYS_MEMFD_CREATE, unix.EPERM) },
	"populate": func() error {
		return alone.Forbid(unix.SYS_MADVISE, unix.EINVAL, alone.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE})
	},
	"pages": func() error {
		return alone.Forbid(unix.SYS_MADVISE, unix.ENOMEM, alone.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE})
	},
	"fsize":  func() error { return limit(unix.RLIMIT_FSIZE, 4096) },
	"nofile": func() error { return limitDescriptors(few) },
	"full":   func() error { return limitDescriptors(0) },
	"cable":  plugIn,
}

func limit(resource int, soft uint64) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(resource, &before); err != nil {
		return err
	}
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: soft, Max: before.Max})
}

// becomeNobody makes this process one of a user without rights, that is as dumpable
// as others.
func becomeNobody() error {
	if err := errors.Join(syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody)); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
}

// few are enough descriptors for a pipe over TCP, not for one that moves to shared
// memory.
const few = 8

// limitDescriptors leaves as many.
func limitDescriptors(left int) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the runtime has some of its own from here on
	if err != nil {
		return err
	}
	l.Close()
	end := uint64(0)
	for free := 0; ; end++ {
		if _, err := unix.FcntlInt(uintptr(end), unix.F_GETFD, 0); err == nil {
			continue
		}
		if free++; free > left {
			return limit(unix.RLIMIT_NOFILE, end)
		}
	}
}

// plugIn waits for the parent to lay a cable, and puts it into service.
func plugIn() error {
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	for _, line := range []string{"link set lo up", "addr add " + farHost + "/30 dev " + farName, "link set " + farName + " up"} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(out))
		}
	}
	return nil
}
