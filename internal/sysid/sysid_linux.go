package sysid

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

func readBootID() (string, error) { return bootIDFrom("/proc/sys/kernel/random/boot_id") }

func bootIDFrom(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", probe.NotSupported("boot id", "%v", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line == "" {
		return "", probe.NotSupported("boot id", "%s is empty", path)
	}
	return line, nil
}

func readNamespaceID(ns Namespace) (string, error) {
	return namespaceIDFrom("/proc/self/ns/" + string(ns))
}

// namespaceIDFrom returns the identifier, device and inode, of the namespace to which path links.
// The error matches errors.ErrUnsupported. It is returned if path cannot be read or is no symbolic
// link: kernels before 3.8 have ordinary files there, whose inodes do not identify the namespace.
func namespaceIDFrom(path string) (string, error) {
	link, err := os.Lstat(path)
	if err != nil {
		return "", probe.NotSupported("namespace id", "%v", err)
	}
	if link.Mode()&os.ModeSymlink == 0 {
		return "", probe.NotSupported("namespace id", "%s is no symbolic link; it is since Linux 3.8", path)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return "", probe.NotSupported("namespace id", "stat %s: %v", path, err)
	}
	return strconv.FormatUint(st.Dev, 16) + "_" + strconv.FormatUint(st.Ino, 16), nil
}
