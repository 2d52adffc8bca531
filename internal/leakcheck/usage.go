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

// settle lists what is in use beyond before, once it is gone or patience ends.
// Each look is preceded by a collection, so that handles closed by the garbage
// collector get their chance; cleanups run in goroutines of the runtime and
// need the pause.
func settle(before usage) []string {
	const looks = 30
	var left []string
	for pause := range looks {
		left = inUse().since(before)
		if len(left) == 0 {
			return nil
		}
		runtime.GC()
		time.Sleep(time.Duration(pause) * 5 * time.Millisecond)
	}
	return left
}
