//go:build !linux

package cma

import (
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

func errNotLinux() error {
	return probe.NotSupported(Name, "%s has no process_vm_readv", runtime.GOOS)
}

func describe(Options) (string, error) { return "", errNotLinux() }

// gone reports whether a read failed because there is no such process any more.
func gone(error) bool { return false }

// unmapped reports whether a read failed because there is no memory there.
func unmapped(error) bool { return false }
