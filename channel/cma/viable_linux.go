package cma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
)

// Files about security modules, relative to the root.
const (
	modulesFile = "sys/kernel/security/lsm"
	scopeFile   = "proc/sys/kernel/yama/ptrace_scope"
)

// deviceDescriptor returns the device descriptor in TensorPipe's form:
// cma:BOOT_PIDNS_USERNS_UID_GID, followed by _CAPABILITIES if the kernel compares these too. It may
// name all processes as tracers of this one, see passYama. If this process cannot read others or be
// read by them, the error is the reason and matches transport.ErrNotSupported; the string is not
// valid then.
func deviceDescriptor(o Options) (string, error) {
	place, err := describePlace()
	if err != nil {
		return "", err
	}
	user, err := describeUser()
	if err != nil {
		return "", err
	}
	if err := checkDumpable(); err != nil {
		return "", err
	}
	rights, err := describeRights(o)
	if err != nil {
		return "", err
	}
	return "cma:" + place + "_" + user + rights, readItself()
}

// describePlace returns the part BOOT_PIDNS_USERNS of the device descriptor: the ids of the running
// kernel, and of the PID and user namespaces of this process. The error matches
// transport.ErrNotSupported if one of them cannot be read; the string is not valid then.
func describePlace() (string, error) {
	boot, err := sysid.BootID()
	if err != nil {
		return "", err
	}
	pids, err := sysid.NamespaceID(sysid.PID)
	if err != nil {
		return "", err
	}
	users, err := sysid.NamespaceID(sysid.User)
	return boot + "_" + pids + "_" + users, err
}

// describeUser returns the part UID_GID of the device descriptor. It returns an error that matches
// transport.ErrNotSupported if the real, effective and saved ids are not equal, because the kernel
// then lets no process of the user read this one.
func describeUser() (string, error) {
	ruid, euid, suid := unix.Getresuid()
	rgid, egid, sgid := unix.Getresgid()
	if ruid != euid || ruid != suid || rgid != egid || rgid != sgid {
		return "", probe.NotSupported(Name, "real, effective and saved ids differ: uids %d, %d, %d, gids %d, %d, %d",
			ruid, euid, suid, rgid, egid, sgid)
	}
	return fmt.Sprintf("%d_%d", ruid, rgid), nil
}

func checkDumpable() error {
	const yes = 1
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || dumpable != yes {
		return probe.NotSupported(Name, "the process is not dumpable (PR_GET_DUMPABLE: %d, %v)", dumpable, err)
	}
	return nil
}

// describeRights returns the last part of the device descriptor: "_" and the capabilities of this
// process if a security module of the kernel compares them, and otherwise "". If the module Yama is
// active it calls passYama. It returns an error that matches transport.ErrNotSupported if Yama
// forbids reading, or if the modules or the capabilities cannot be determined; the string is not
// valid then.
func describeRights(o Options) (string, error) {
	root := "/" + o.Root
	modules, err := securityModules(root)
	if err != nil {
		return "", err
	}
	rights := ""
	if slices.Contains(modules, "capability") {
		if rights, err = describeCapabilities(); err != nil {
			return "", err
		}
	}
	if slices.Contains(modules, "yama") {
		err = passYama(root, o.AllowAnyTracer)
	}
	return rights, err
}

// securityModules returns the names of the kernel's active security modules, which it reads from a
// file below the directory root. If the file cannot be read, the result is the module "capability",
// which every kernel has, and "yama" if the file with Yama's scope exists. The error matches
// transport.ErrNotSupported: it cannot be determined whether that file exists.
func securityModules(root string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, modulesFile))
	if err == nil {
		return strings.Split(strings.TrimSpace(string(text)), ","), nil
	}
	_, err = os.Stat(filepath.Join(root, scopeFile))
	switch {
	case err == nil:
		return []string{"capability", "yama"}, nil
	case errors.Is(err, fs.ErrNotExist):
		return []string{"capability"}, nil
	default:
		return nil, probe.NotSupported(Name, "%v", err)
	}
}

// describeCapabilities returns "_" and the permitted capabilities of this process in hexadecimal.
// They are part of the descriptor because the kernel does not let a process read another one that
// has more capabilities. The error matches transport.ErrNotSupported: the system call failed.
func describeCapabilities() (string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return "", probe.NotSupported(Name, "capget: %v", err)
	}
	permitted := uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted)
	return "_" + strconv.FormatUint(permitted, 16), nil
}

// passYama returns nil if the security module Yama lets other processes of the same user read this
// one. It reads Yama's ptrace_scope from a file below the directory root. 0 permits reading. If the
// scope is 1 and allowAny is true, passYama permits it by naming all processes as tracers of this
// one, for the rest of its life. In all other cases, and if the file cannot be read, it returns an
// error that matches transport.ErrNotSupported.
func passYama(root string, allowAny bool) error {
	text, err := os.ReadFile(filepath.Join(root, scopeFile))
	if err != nil {
		return probe.NotSupported(Name, "Yama's scope: %v", err)
	}
	switch scope := strings.TrimSpace(string(text)); {
	case scope == "0":
		return nil
	case scope != "1":
		return probe.NotSupported(Name, "Yama's ptrace_scope is %s: only 0, and 1 if AllowAnyTracer is set, let processes read each other", scope)
	case !allowAny:
		return probe.NotSupported(Name, "Yama's ptrace_scope is 1: processes can read each other only if AllowAnyTracer lets every process of the user do so")
	}
	if err := unix.Prctl(unix.PR_SET_PTRACER, unix.PR_SET_PTRACER_ANY, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return probe.NotSupported(Name, "PR_SET_PTRACER_ANY: %v", err)
	}
	return nil
}

// readItself returns nil if this process can read its own memory with process_vm_readv, and
// otherwise an error that matches transport.ErrNotSupported. A system call filter may forbid the
// call.
func readItself() error {
	from, to := []byte("12345678"), make([]byte, 8)
	var r reader
	if err := r.read(os.Getpid(), device.Bytes(to), []segment{segmentOf(from)}, 0, len(to)); err != nil {
		return probe.NotSupported(Name, "process_vm_readv does not work, even on the own process: %v", err)
	}
	return nil
}

// noSuchProcess reports whether err, the error of a read, means that the process does not exist any
// more. It is false if err is nil.
func noSuchProcess(err error) bool { return errors.Is(err, syscall.ESRCH) }

// noSuchMemory reports whether err, the error of a read, means that memory of one of the two
// processes is not mapped. It is false if err is nil.
func noSuchMemory(err error) bool { return errors.Is(err, syscall.EFAULT) }
