package leakcheck

import (
	"os"
	"strconv"
	"strings"
)

// inUse reads what this process has open from /proc. Where /proc is missing
// nothing counts as open.
func inUse() usage {
	maps, _ := os.ReadFile("/proc/self/maps")
	return usage{descriptors: openDescriptors(), mapped: mappedFiles(string(maps))}
}

func openDescriptors() map[string]int {
	const dir = "/proc/self/fd/"
	open := map[string]int{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		// The descriptor that read the directory is closed by now: no link.
		if target, err := os.Readlink(dir + e.Name()); err == nil {
			open[target]++
		}
	}
	return open
}

// mappedFiles sums the bytes of mappings that have a file behind them: regular
// files, memfd, /dev/shm, and shared anonymous memory, which the kernel shows
// as /dev/zero. Files with an executable mapping are left out: they are the
// program and its libraries, and the C library loads some of those late (name
// resolution under -race) and for good.
func mappedFiles(maps string) map[string]int {
	bytes, code := map[string]int{}, map[string]bool{}
	for line := range strings.Lines(maps) {
		if m, ok := parseMapping(line); ok {
			bytes[m.file] += m.size
			code[m.file] = code[m.file] || m.executable
		}
	}
	for file := range code {
		if code[file] {
			delete(bytes, file)
		}
	}
	return bytes
}

type mapping struct {
	file       string
	size       int
	executable bool
}

// parseMapping reads a line of /proc/self/maps:
// start-end permissions offset device inode file.
func parseMapping(line string) (m mapping, ok bool) {
	f := strings.Fields(line)
	if len(f) < 6 || strings.HasPrefix(f[5], "[") {
		return mapping{}, false
	}
	from, to, _ := strings.Cut(f[0], "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if err1 != nil || err2 != nil {
		return mapping{}, false
	}
	return mapping{
		file:       strings.Join(f[5:], " "),
		size:       int(end - start),
		executable: strings.Contains(f[1], "x"),
	}, true
}
