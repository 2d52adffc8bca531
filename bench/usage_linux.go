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

// descriptors does not count the one that reads the list.
func descriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list) - 1
}

// sharedBytes is the memory that the system has set aside for the segments that are
// mapped here, be it touched by this process, by another one, or by nobody. A process
// that may not see that (it takes CAP_SYS_ADMIN) counts all that is mapped.
func sharedBytes() int {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	sum := 0
	for line := range strings.Lines(string(text)) {
		var from, to int
		if !strings.Contains(line, "memfd:tensorpipe_shm") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil {
			sum += setAside(from, to)
		}
	}
	return sum
}

// setAside is how much of the file that is mapped there has memory.
func setAside(from, to int) int {
	info, err := os.Stat(fmt.Sprintf("/proc/self/map_files/%x-%x", from, to))
	if err != nil {
		return to - from
	}
	return int(info.Sys().(*syscall.Stat_t).Blocks) * 512
}

func threads() int {
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0
	}
	return len(list)
}
