package leakcheck

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"
)

// usage counts open resources by name: descriptors by their target, mapped bytes by the mapped file.
// Descriptor numbers and addresses are not used as names, because they are reused.
type usage struct {
	descriptors map[string]int
	mapped      map[string]int
}

// since returns one line for each descriptor target and each mapped file of which u counts more
// than before does, descriptors first, each group sorted. It returns nil if there are none.
func (u usage) since(before usage) []string {
	out := grown("descriptors", u.descriptors, before.descriptors)
	return append(out, grown("mapped bytes", u.mapped, before.mapped)...)
}

// without removes the files whose names begin with one of prefixes from u, and returns u.
func (u usage) without(prefixes []string) usage {
	for _, files := range []map[string]int{u.descriptors, u.mapped} {
		maps.DeleteFunc(files, func(name string, _ int) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		})
	}
	return u
}

func grown(unit string, now, before map[string]int) []string {
	var out []string
	for name, n := range now {
		if more := n - before[name]; more > 0 {
			out = append(out, fmt.Sprintf("%s: %d more of %s", unit, more, name))
		}
	}
	sort.Strings(out)
	return out
}

// settleTimeout bounds how long resources may take to be released. Tests in which a leak is certain
// shorten it.
var settleTimeout = 5 * time.Second

// settle calls leaks repeatedly until it returns no lines or settleTimeout has passed, and returns
// the last result. Between two calls it collects garbage, so that finalizers close unreachable
// files, and pauses while they run.
func settle(leaks func() []string) []string {
	pause := time.Duration(0)
	for begin := time.Now(); ; {
		found := leaks()
		if len(found) == 0 || time.Since(begin) > settleTimeout {
			return found
		}
		runtime.GC()
		time.Sleep(pause)
		pause += 5 * time.Millisecond
	}
}
