package cusim

import "fmt"

// Control controls the simulator of this process. The driver that the code under test has loaded
// from the same file is the same simulator. All methods may be called from any goroutine, also while
// calls of the driver are blocked.
type Control struct {
	set                 func(name, value string) int32
	holdAll, releaseAll func()
	hold, release       func(stream uintptr) int32
	queued              func(stream uintptr) int64
	calls               func(function string) uint64
	blocking, misuse    func() uint64
	lastMisuse          func(text *byte, size uintptr)
	setSite             func(text string)
}

// Set sets an option, given by the name of its environment variable, such as "CUSIM_FAIL"; "" resets
// it. Options of devices have no effect after cuInit. Set returns an error if there is no such
// option, or if the value is invalid.
func (c *Control) Set(option, value string) error {
	if c.set(option, value) != 0 {
		return fmt.Errorf("cusim: no option %s=%s", option, value)
	}
	return nil
}

// HoldAll holds back the work of all streams: calls enqueue work as usual, and none of it begins.
// Work that has begun ends as usual.
func (c *Control) HoldAll() { c.holdAll() }

// ReleaseAll undoes HoldAll and all calls of Hold.
func (c *Control) ReleaseAll() { c.releaseAll() }

// Hold holds back the work of one stream, until Release or ReleaseAll. It returns an error if there
// is no such stream.
func (c *Control) Hold(stream uintptr) error { return found(stream, c.hold(stream) == 0) }

// Release undoes Hold. It returns an error if there is no such stream.
func (c *Control) Release(stream uintptr) error { return found(stream, c.release(stream) == 0) }

// Queued returns the number of operations of a stream that are not done. It returns an error if
// there is no such stream.
func (c *Control) Queued(stream uintptr) (int, error) {
	n := c.queued(stream)
	return int(max(n, 0)), found(stream, n >= 0)
}

func found(stream uintptr, ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("cusim: no stream %#x", stream)
}

// Calls returns the number of calls of a function, such as "cuMemcpyAsync", including those that
// returned an error. "" stands for all functions together.
func (c *Control) Calls(function string) int { return int(c.calls(function)) }

// Blocking returns the number of calls that wait for a device: synchronizations, releases of memory,
// and copies from or to pageable memory. They count from their beginning.
func (c *Control) Blocking() int { return int(c.blocking()) }

// Misuse returns the number of reported misuses.
func (c *Control) Misuse() int { return int(c.misuse()) }

// LastMisuse returns the text of the last reported misuse, "" if there was none.
func (c *Control) LastMisuse() string {
	text := make([]byte, 512)
	c.lastMisuse(&text[0], uintptr(len(text)))
	for i, b := range text {
		if b == 0 {
			return string(text[:i])
		}
	}
	return string(text)
}

// SetSite sets a text that follows the numbered calls of the calling thread in the trace, after a tab; "" for
// none. The goroutine must be bound to its thread.
func (c *Control) SetSite(text string) { c.setSite(text) }
