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

// Files about security modules.
const (
	modulesFile = "sys/kernel/security/lsm"
	scopeFile   = "proc/sys/kernel/yama/ptrace_scope"
)

// describe says which processes this one may hope to read, in TensorPipe's form:
// cma:BOOT_PIDNS_USERNS_UID_GID, and _CAPABILITIES where the kernel compares
// those too. The error says why it cannot read any.
func describe(o Options) (string, error) {
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

// describePlace names the kernel and the namespaces.
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

// describeUser names the user and the group, which must be the same in every
// respect: else the kernel lets nobody read this process.
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

// describeRights adds what the security modules of this kernel compare, and
// refuses where one of them is in the way.
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

// securityModules lists those of the kernel. Where that cannot be read they are
// taken to be what every kernel has, and Yama if there is its file.
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

// describeCapabilities names the permitted capabilities: a process with fewer
// cannot read one with more.
func describeCapabilities() (string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return "", probe.NotSupported(Name, "capget: %v", err)
	}
	permitted := uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted)
	return "_" + strconv.FormatUint(permitted, 16), nil
}

// passYama obeys the scope that Yama sets for reading other processes.
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

// readItself tries the system call, which a filter may forbid.
func readItself() error {
	from, to := []byte("12345678"), make([]byte, 8)
	var r reader
	if err := r.read(os.Getpid(), device.Bytes(to), []segment{segmentOf(from)}, 0, len(to)); err != nil {
		return probe.NotSupported(Name, "process_vm_readv does not work, even on the own process: %v", err)
	}
	return nil
}

// gone reports whether a read failed because there is no such process any more.
func gone(err error) bool { return errors.Is(err, syscall.ESRCH) }

// unmapped reports whether a read failed because there is no memory there.
func unmapped(err error) bool { return errors.Is(err, syscall.EFAULT) }
