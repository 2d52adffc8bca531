//go:build !unix

package main

import "os"

// resume does nothing: no signal stops a process on this system.
func (p *process) resume() {}

// hasBlocks returns false: the blocks of a file are not known on this system.
func hasBlocks(os.FileInfo) bool { return false }
