package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// residentBytes returns the resident memory of this process in bytes, or 0 if it is unknown.
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

// pageBytes returns the bytes of this process's resident pages and page tables. Of a page that n
// processes have mapped, it counts an n-th part, so that the results of several processes can be
// added. A number that the system does not report counts as 0.
func pageBytes() int {
	return kibibytes("/proc/self/smaps_rollup", "Pss:") + kibibytes("/proc/self/status", "VmPTE:")
}

// kibibytes reads a size in KiB from the first line of the file at path that begins with name, and
// returns the size in bytes. It returns 0 if there is no such line or file.
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

// descriptors returns the number of file descriptors that this process has open, or 0 if it is
// unknown.
func descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list) - 1
}

// sharedBytes returns two sizes in bytes: mapped is that of all mappings of package shm's segments
// in this process, and pages that of the memory pages which the files of the segments have, touched
// or preallocated. Both are 0 if unknown; pages is also 0 without the permission to read it.
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
		addresses, _, _ := strings.Cut(line, " ")
		info, err := os.Stat("/proc/self/map_files/" + addresses)
		if err != nil {
			continue // without the permission to read it
		}
		if file, ok := info.Sys().(*syscall.Stat_t); ok && !seen[file.Ino] {
			seen[file.Ino] = true
			pages += int(file.Blocks) * blockBytes
		}
	}
	return mapped, pages
}

const blockBytes = 512 // of stat, whatever the file system

// threads returns the number of threads of this process, or 0 if it is unknown.
func threads() int {
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(list)
}

// usageOf returns the resource usage of the process with that id, with its limit of descriptors. The
// error is that of reading it from the system, as when the process has ended.
func usageOf(pid int) (processUsage, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	u := processUsage{
		Resident: kibibytes(dir+"/status", "VmRSS:"),
		Shared:   kibibytes(dir+"/status", "RssShmem:"),
	}
	files, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return u, err
	}
	u.Descriptors = len(files)
	limits, err := os.ReadFile(dir + "/limits")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(limits)) {
		if value, found := strings.CutPrefix(line, "Max open files"); found {
			_, _ = fmt.Sscan(value, &u.DescriptorLimit) // "unlimited" stays 0
		}
	}
	tasks, err := filepath.Glob(dir + "/task/*/schedstat")
	if err != nil {
		return u, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return u, fmt.Errorf("%s: %w", task, err)
		}
		u.CPU += time.Duration(ns)
		u.Threads++
	}
	return u, nil
}
