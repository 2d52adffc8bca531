//go:build !linux && !darwin

package filetransfer

import "os"

// freeBytes returns 0 and false: on this system the free space is not known. Writing to a full disk
// fails.
func freeBytes(*os.File) (n int, known bool) { return 0, false }

// lock does nothing and returns nil: this package has file locks for Linux and macOS only, so two receivers
// must not share a directory.
func lock(*os.File) error { return nil }

// soleName returns true: the number of a file's names is not known on this system.
func soleName(os.FileInfo) bool { return true }
