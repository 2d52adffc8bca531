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

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// atSystemCall starts a child with childArgs under ptrace. The child is killed before its n-th
// system call, not counting those of the Go runtime and those before its first line of output.
// atSystemCall does not wait for the child's end; the channel ended of the result receives how the
// child ended.
func atSystemCall(t *testing.T, childArgs string, n int) *killableChild {
	t.Helper()
	m := newKillableChild()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	outputRead := make(chan struct{})
	go func() {
		m.readOutput(r)
		r.Close()
		close(outputRead)
	}()
	go func() {
		runtime.LockOSThread() // the thread is the tracer
		defer runtime.UnlockOSThread()
		e := trace(childArgs, w, n)
		<-outputRead
		m.ended <- e
	}()
	return m
}

// skipWithoutTracing skips the test if ptrace is not permitted, as in some containers. It starts a
// traced child to find out.
func skipWithoutTracing(t *testing.T) {
	t.Helper()
	m := atSystemCall(t, strings.Join([]string{routeChild, routes[0].name, string(pipe.DialectNative), "uv://127.0.0.1:1", "idle"}, " "), 1)
	if e := testwait.Finish(t, m.ended); errors.Is(e.err, unix.EPERM) || errors.Is(e.err, unix.ENOSYS) {
		t.Skip("no process may be traced here: ", e.err)
	}
}

// tracer traces all threads of a child.
type tracer struct {
	pid      int
	fatal    int // the number of the system call before which to kill it, from 1
	known    map[int]bool
	counting bool
	exitInfo
}

func trace(childArgs string, out *os.File, fatal int) exitInfo {
	attr := &syscall.ProcAttr{
		Env:   environment(childArgs),
		Files: []uintptr{0, out.Fd(), 2},
		Sys:   &syscall.SysProcAttr{Ptrace: true},
	}
	pid, err := syscall.ForkExec(os.Args[0], []string{os.Args[0]}, attr)
	out.Close()
	if err != nil {
		return exitInfo{err: err}
	}
	tr := &tracer{pid: pid, fatal: fatal, known: map[int]bool{pid: true}}
	tr.err = tr.follow()
	tr.at = time.Now()
	return tr.exitInfo
}

// traceOptions make system calls distinguishable from signals, trace new threads, and kill the
// child with the tracer.
const traceOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// follow resumes the traced child each time one of its threads stops, until the child has exited.
// It sets tr.killed if the child was killed. The error is that of ptrace, or describes the child's
// exit if that was a failure.
func (tr *tracer) follow() error {
	var status unix.WaitStatus
	if _, err := wait(tr.pid, &status); err != nil {
		return err
	}
	if err := unix.PtraceSetOptions(tr.pid, traceOptions); err != nil {
		return errors.Join(err, unix.Kill(tr.pid, unix.SIGKILL))
	}
	for tid := tr.pid; ; {
		if err := unix.PtraceSyscall(tid, tr.handleStop(tid, status)); err != nil && err != unix.ESRCH {
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

// wait blocks until a thread that this thread traces, with the id pid or any if pid is -1, changes
// its state. It returns the id of that thread and sets *status. It does not wait for other children
// of the process.
func wait(pid int, status *unix.WaitStatus) (int, error) {
	for {
		tid, err := unix.Wait4(pid, status, unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return tid, err
		}
	}
}

// handleStop handles a stop of the traced thread tid and returns the signal with which the thread
// must be resumed, 0 for none. If the thread has stopped at a system call, handleStop counts the
// call, and kills the child at the chosen one.
func (tr *tracer) handleStop(tid int, status unix.WaitStatus) int {
	switch s := status.StopSignal(); {
	case s == unix.SIGTRAP|0x80:
		tr.call(tid)
	case s == unix.SIGTRAP: // a ptrace event, or the first stop
	case s == unix.SIGSTOP && !tr.known[tid]: // a new thread
		tr.known[tid] = true
	default:
		return int(s)
	}
	return 0
}

// call counts a system call if the thread tid is about to make one. If the number is the chosen
// one, it kills the child. Calls that ignored reports, and those before the child's first output,
// do not count.
func (tr *tracer) call(tid int) {
	var c systemCall
	if !c.of(tid) {
		return
	}
	tr.counting = tr.counting || c.number == unix.SYS_WRITE && c.args[0] == 1
	if !tr.counting || tr.killed || c.ignored() {
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

// systemCall is the kernel's struct ptrace_syscall_info for the entry of a call.
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

// of sets *c to the system call that the stopped thread tid is about to make, and reports true. If
// the thread is not about to make one, it reports false.
func (c *systemCall) of(tid int) bool {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(*c), uintptr(unsafe.Pointer(c)), 0, 0)
	return errno == 0 && c.op == entry
}

// ignored reports whether the system call does not count, because the Go runtime makes it at
// arbitrary times, for threads, signals or its heap, or because the test makes it.
func (c *systemCall) ignored() bool {
	switch c.number {
	case unix.SYS_MMAP:
		return int32(c.args[4]) < 0 // no file
	case unix.SYS_GETSOCKOPT:
		return c.args[2] == unix.TCP_INFO // see lanesCarry
	}
	return slices.Contains(runtimeCalls, c.number)
}

var runtimeCalls = []uint64{
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_MADVISE, unix.SYS_MPROTECT,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_GETCPU,
	unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_TGKILL, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_RSEQ,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_PRCTL, unix.SYS_EPOLL_PWAIT, unix.SYS_CLOCK_GETTIME, unix.SYS_GETRANDOM,
}
