package leakcheck

import (
	"os"
	"strconv"
	"strings"
)

// inUse returns the open descriptors of this process and its mappings of files and shared memory,
// as /proc lists them. If /proc cannot be read it returns none.
func inUse() usage {
	maps, _ := os.ReadFile("/proc/self/maps")
	return usage{descriptors: openDescriptors(), mapped: mappedFiles(string(maps))}
}

func openDescriptors() map[string]int {
	const dir = "/proc/self/fd/"
	open := map[string]int{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		// The descriptor of the directory itself is closed by now and has no link.
		if target, err := os.Readlink(dir + e.Name()); err == nil {
			open[target]++
		}
	}
	return open
}

// mappedFiles returns the number of mapped bytes of each file that maps, the content of
// /proc/self/maps, lists: of regular files, memfd, /dev/shm, and shared anonymous memory, which the
// kernel lists as /dev/zero. It leaves out files with an executable mapping, which are the program
// and its libraries; the C library loads some of them late and never unloads them.
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

// parseMapping returns the mapping that line, one line of /proc/self/maps, describes: start-end,
// permissions, offset, device, inode, file. If the mapping has no file, or the line is malformed,
// ok is false.
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
