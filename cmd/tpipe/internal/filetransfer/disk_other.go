//go:build !linux && !darwin

package filetransfer

import "os"

// freeBytes returns no number, since this system is not supported. A full disk fails the writes.
func freeBytes(*os.File) (n int, known bool) { return 0, false }

// lock does nothing, since this system is not supported: two receivers must not share a directory.
func lock(*os.File) error { return nil }
