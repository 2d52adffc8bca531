//go:build !linux

package cma

import (
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// reader has the methods of the reader for Linux, which fail here.
type reader struct{}

// read copies nothing and returns a [*ReadError] with the process pid: only Linux has
// process_vm_readv.
func (*reader) read(pid int, _ device.Buffer, _ []segment, _, _ int) error {
	return &ReadError{PID: pid, Err: errNotLinux()}
}

// readChunk copies nothing and returns a [*ReadError] with the process of p: only Linux has
// process_vm_readv.
func (r *reader) readChunk(p chunk) error { return r.read(p.pid, p.dst, p.src, p.off, p.n) }

func errNotLinux() error {
	return probe.NotSupported(Name, "%s has no process_vm_readv", runtime.GOOS)
}

// deviceDescriptor returns "" and an error that matches transport.ErrNotSupported: this system has
// no process_vm_readv.
func deviceDescriptor(Options) (string, error) { return "", errNotLinux() }

// noSuchProcess returns false: on this system no read fails because a process is gone.
func noSuchProcess(error) bool { return false }

// noSuchMemory returns false: on this system no read fails because memory is not mapped.
func noSuchMemory(error) bool { return false }
