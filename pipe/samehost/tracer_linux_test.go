package samehost_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// atSystemCall lets a child die before its n-th system call, of those that are no
// business of the runtime alone. Counting begins with the first thing that it says.
func atSystemCall(t *testing.T, part string, n int) *mortal {
	t.Helper()
	m := newMortal()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	heard := make(chan struct{})
	go func() {
		m.hear(r)
		r.Close()
		close(heard)
	}()
	go func() {
		runtime.LockOSThread() // which is the tracer
		defer runtime.UnlockOSThread()
		e := trace(part, w, n)
		<-heard
		m.ended <- e
	}()
	return m
}

// needsTracing skips a test where a process may not be traced, as in some containers.
func needsTracing(t *testing.T) {
	t.Helper()
	m := atSystemCall(t, strings.Join([]string{onWay, ways[0].name, pipe.DialectNative, "uv://127.0.0.1:1", "nap"}, " "), 1)
	if e := patience.Finish(t, m.ended); errors.Is(e.err, unix.EPERM) || errors.Is(e.err, unix.ENOSYS) {
		t.Skip("no process may be traced here: ", e.err)
	}
}

// tracer follows all threads of a child.
type tracer struct {
	pid   int
	fatal int // the system call before which to kill it, from 1 on
	known map[int]bool
	begun bool
	ending
}

func trace(part string, out *os.File, fatal int) ending {
	attr := &syscall.ProcAttr{
		Env:   environment(part),
		Files: []uintptr{0, out.Fd(), 2},
		Sys:   &syscall.SysProcAttr{Ptrace: true},
	}
	pid, err := syscall.ForkExec(os.Args[0], []string{os.Args[0]}, attr)
	out.Close()
	if err != nil {
		return ending{err: err}
	}
	tr := &tracer{pid: pid, fatal: fatal, known: map[int]bool{pid: true}}
	tr.err = tr.follow()
	tr.at = time.Now()
	return tr.ending
}

// traced are the options: calls are told from signals, threads are followed, and
// nobody outlives the tracer.
const traced = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// follow returns when the child has ended.
func (tr *tracer) follow() error {
	var status unix.WaitStatus
	if _, err := wait(tr.pid, &status); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(tr.pid, traced); err != nil {
		return errors.Join(err, unix.Kill(tr.pid, unix.SIGKILL))
	}
	for tid := tr.pid; ; {
		if err := unix.PtraceSyscall(tid, tr.heed(tid, status)); err != nil && err != unix.ESRCH {
			return err
		}
		var err error
		for {
			if tid, err = wait(-1, &status); err != nil {
				return err
			}
			if status.Stopped() {
				break
			}
			if tid == tr.pid {
				tr.killed = status.Signaled() && status.Signal() == unix.SIGKILL
				return failure(status)
			}
		}
	}
}

func failure(status unix.WaitStatus) error {
	if status.Exited() && status.ExitStatus() == 0 {
		return nil
	}
	return fmt.Errorf("the child ended with status %#x", int(status))
}

// wait waits for a thread of this thread's child: other children are others'.
func wait(pid int, status *unix.WaitStatus) (int, error) {
	for {
		tid, err := unix.Wait4(pid, status, unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return tid, err
		}
	}
}

// heed looks why a thread has stopped and returns the signal that it is to have.
func (tr *tracer) heed(tid int, status unix.WaitStatus) int {
	switch s := status.StopSignal(); {
	case s == unix.SIGTRAP|0x80:
		tr.call(tid)
	case s == unix.SIGTRAP: // an event, or the beginning
	case s == unix.SIGSTOP && !tr.known[tid]: // a thread begins
		tr.known[tid] = true
	default:
		return int(s)
	}
	return 0
}

// call counts a system call that begins, and may be its end.
func (tr *tracer) call(tid int) {
	var c systemCall
	if !c.of(tid) {
		return
	}
	tr.begun = tr.begun || c.number == unix.SYS_WRITE && c.args[0] == 1
	if !tr.begun || tr.killed || c.private() {
		return
	}
	tr.points++
	if tr.points == tr.fatal {
		tr.where = fmt.Sprintf("system call %d", c.number)
		_ = unix.Kill(tr.pid, unix.SIGKILL)
		return
	}
	tr.dialled = tr.dialled || c.number == unix.SYS_CONNECT && c.args[2] == unix.SizeofSockaddrInet4
}

// systemCall is the kernel's struct ptrace_syscall_info, of a call that begins.
type systemCall struct {
	op     uint8
	_      [23]byte
	number uint64
	args   [6]uint64
	_      [16]byte
}

const (
	getSyscallInfo = 0x420e // PTRACE_GET_SYSCALL_INFO
	entry          = 1      // PTRACE_SYSCALL_INFO_ENTRY
)

// of asks what a thread is about to call, and reports whether it is.
func (c *systemCall) of(tid int) bool {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(*c), uintptr(unsafe.Pointer(c)), 0, 0)
	return errno == 0 && c.op == entry
}

// private reports whether a call has to do with threads and their processors, signals and
// the heap of the runtime only, which come when they want, or with the test.
func (c *systemCall) private() bool {
	switch c.number {
	case unix.SYS_MMAP:
		return int32(c.args[4]) < 0 // no file
	case unix.SYS_GETSOCKOPT:
		return c.args[2] == unix.TCP_INFO // see lanesCarry
	}
	return slices.Contains(runtimesOwn, c.number)
}

var runtimesOwn = []uint64{
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_MADVISE, unix.SYS_MPROTECT,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_GETCPU,
	unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_TGKILL, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_RSEQ,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_PRCTL, unix.SYS_EPOLL_PWAIT, unix.SYS_CLOCK_GETTIME, unix.SYS_GETRANDOM,
}
