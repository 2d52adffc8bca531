package bench

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

func residentBytes() int {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * os.Getpagesize()
}

// pageBytes returns the bytes of the process's pages and page tables. A page that n
// processes have mapped counts as an n-th of it, so that usages can be added.
func pageBytes() int {
	return kibibytes("/proc/self/smaps_rollup", "Pss:") + kibibytes("/proc/self/status", "VmPTE:")
}

// kibibytes returns the bytes that a line of a file in /proc has in KiB, 0 if there is no
// such line.
func kibibytes(path, name string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var n int
		if value, found := strings.CutPrefix(line, name); found {
			if _, err := fmt.Sscan(value, &n); err == nil {
				return n << 10
			}
		}
	}
	return 0
}

// descriptors does not count the one that reads the list.
func descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list) - 1
}

// sharedBytes is the size of all places at which segments are mapped, and how much of
// them has pages, which the system has set aside even where nobody has touched them.
// That is 0 for those who may not ask.
func sharedBytes() (mapped, pages int) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0
	}
	seen := map[uint64]bool{}
	for line := range strings.Lines(string(text)) {
		var from, to int
		if !strings.Contains(line, "memfd:tensorpipe_shm") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			continue
		}
		mapped += to - from
		if file := mappedFile(line); file != nil && !seen[file.Ino] {
			seen[file.Ino] = true
			pages += int(file.Blocks) * blockBytes
		}
	}
	return mapped, pages
}

const blockBytes = 512 // of stat, whatever the file system

// mappedFile is what a line of the maps is about, nil for those who may not ask.
func mappedFile(line string) *syscall.Stat_t {
	place, _, _ := strings.Cut(line, " ")
	info, err := os.Stat("/proc/self/map_files/" + place)
	if err != nil {
		return nil
	}
	file, _ := info.Sys().(*syscall.Stat_t)
	return file
}

func threads() int {
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(list)
}
