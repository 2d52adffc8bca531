//go:build !linux

package cma

import (
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// reader has the methods of the reader for Linux, which fail here.
type reader struct{}

// read returns a [*ReadError]: only Linux can read the memory of another process in this way.
func (*reader) read(pid int, _ device.Buffer, _ []segment, _, _ int) error {
	return &ReadError{PID: pid, Err: errNotLinux()}
}

func errNotLinux() error {
	return probe.NotSupported(Name, "%s has no process_vm_readv", runtime.GOOS)
}

// deviceDescriptor returns an error that matches transport.ErrNotSupported: this system has no
// process_vm_readv.
func deviceDescriptor(Options) (string, error) { return "", errNotLinux() }

// noSuchProcess returns false: on this system no read fails because a process is gone.
func noSuchProcess(error) bool { return false }

// noSuchMemory returns false: on this system no read fails because memory is not mapped.
func noSuchMemory(error) bool { return false }
