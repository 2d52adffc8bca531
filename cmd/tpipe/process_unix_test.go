//go:build unix

package main

import (
	"os"
	"syscall"
)

// resume continues a process that a signal has stopped. It does nothing if the process has ended.
func (p *process) resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// hasBlocks reports whether the disk has blocks for the file that info describes: whether anything
// has been written to it.
func hasBlocks(info os.FileInfo) bool { return info.Sys().(*syscall.Stat_t).Blocks > 0 }
