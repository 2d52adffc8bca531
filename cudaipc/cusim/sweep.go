package cusim

import (
	"os"
	"path/filepath"
	"time"
)

// unusedFor is the time after which a build that no call has returned is removed.
const unusedFor = 7 * 24 * time.Hour

// use reports whether file, in the folder target, exists, and records in the time of the folder that
// it is used at the time now. It does so at most once a day, so that most calls only read.
func use(target, file string, now time.Time) bool {
	if info, err := os.Stat(target); err == nil && now.Sub(info.ModTime()) > 24*time.Hour {
		_ = os.Chtimes(target, now, now) // if it fails, the build may be removed and made again
	}
	_, err := os.Stat(file) // after the time is set, removeUnused keeps the folder
	return err == nil
}

// removeUnused removes the folders in dir that have not been used for longer than unusedFor at the
// time now: builds of other states of the sources, and what interrupted builds have left. Processes
// that have loaded such a build keep it until they end. A folder is renamed before it is removed, so
// that use finds a whole build or none.
func removeUnused(dir string, now time.Time) {
	unused := func(path string) bool {
		info, err := os.Lstat(path)
		return err == nil && info.IsDir() && now.Sub(info.ModTime()) > unusedFor
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !unused(path) {
			continue
		}
		trash, err := os.MkdirTemp(dir, "unused-")
		if err != nil {
			return
		}
		moved := filepath.Join(trash, "build")
		if os.Rename(path, moved) == nil && !unused(moved) { // it has been used in the meantime
			_ = os.Rename(moved, path)
		}
		_ = os.RemoveAll(trash) // what remains is removed in a week
	}
}
