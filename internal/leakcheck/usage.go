package leakcheck

import (
	"fmt"
	"runtime"
	"sort"
	"time"
)

// usage counts resources by name: descriptors by what they refer to, mapped
// bytes by the file behind them. Names rather than numbers, because a
// descriptor or an address that was closed may be handed out again.
type usage struct {
	descriptors map[string]int
	mapped      map[string]int
}

// since lists what u has more of than before.
func (u usage) since(before usage) []string {
	out := grown("descriptors", u.descriptors, before.descriptors)
	return append(out, grown("mapped bytes", u.mapped, before.mapped)...)
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

// patience is for how long something may still be on its way out.
const patience = 5 * time.Second

// settle lists what left finds, once that is nothing or patience ends.
// Looks are separated by a collection, so that handles closed by the garbage
// collector get their chance; cleanups run in goroutines of the runtime and
// need the pause.
func settle(left func() []string) []string {
	pause := time.Duration(0)
	for begin := time.Now(); ; {
		found := left()
		if len(found) == 0 || time.Since(begin) > patience {
			return found
		}
		runtime.GC()
		time.Sleep(pause)
		pause += 5 * time.Millisecond
	}
}
