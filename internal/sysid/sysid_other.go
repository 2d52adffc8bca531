//go:build !linux

package sysid

import (
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

func readBootID() (string, error) {
	return "", probe.NotSupported("boot id", "%s has no /proc/sys/kernel/random/boot_id", runtime.GOOS)
}

func readNamespaceID(Namespace) (string, error) {
	return "", probe.NotSupported("namespace id", "%s has no /proc/self/ns", runtime.GOOS)
}
