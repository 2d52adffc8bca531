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

// deviceDescriptor returns the device descriptor in TensorPipe's form: cma:BOOT_PIDNS_USERNS_UID_GID,
// followed by _CAPABILITIES if the kernel compares these too. The error, which matches
// transport.ErrNotSupported, is why this process cannot read others or be read by them.
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

// describePlace returns the part BOOT_PIDNS_USERNS of the descriptor, which identifies the running
// kernel and the namespaces of this process. The error is that of package sysid.
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

// describeUser returns the part UID_GID of the descriptor. It returns an error if real, effective and
// saved ids are not equal, because the kernel then permits no process to read this one.
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

// describeRights returns the part of the descriptor with the rights that the security modules of this
// kernel compare, or "" if they compare none. It returns an error if a module forbids reading, or if
// the modules or the rights cannot be determined.
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

// securityModules returns the names of the security modules of the kernel, from the list below root. If
// the list cannot be read it assumes the module that every kernel has, and Yama if the file of Yama's
// scope exists. It returns an error if it cannot determine whether that file exists.
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

// describeCapabilities returns "_" and the permitted capabilities of this process in hexadecimal. The
// kernel does not let a process read another one that has more capabilities. The error is that the
// system call failed.
func describeCapabilities() (string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return "", probe.NotSupported(Name, "capget: %v", err)
	}
	permitted := uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted)
	return "_" + strconv.FormatUint(permitted, 16), nil
}

// passYama returns nil if Yama lets other processes of the user read this one, and otherwise an error.
// It reads Yama's ptrace_scope below root. If the scope is 1 and allowAny is set, passYama first names
// all processes as tracers, for the life of this process.
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

// readItself returns an error if process_vm_readv does not work, which a system call filter may
// forbid. It reads memory of this process.
func readItself() error {
	from, to := []byte("12345678"), make([]byte, 8)
	var r reader
	if err := r.read(os.Getpid(), device.Bytes(to), []segment{segmentOf(from)}, 0, len(to)); err != nil {
		return probe.NotSupported(Name, "process_vm_readv does not work, even on the own process: %v", err)
	}
	return nil
}

// noSuchProcess reports whether a read failed because the process does not exist any more.
func noSuchProcess(err error) bool { return errors.Is(err, syscall.ESRCH) }

// noSuchMemory reports whether a read failed because the memory is not mapped.
func noSuchMemory(err error) bool { return errors.Is(err, syscall.EFAULT) }
