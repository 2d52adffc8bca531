package drops

import (
	"runtime"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// WithSites returns d, the driver that control controls, such that the trace of a run has the call site of each
// call. In other processes it returns d itself.
func WithSites(d driver.Driver, control *cusim.Control) driver.Driver {
	if !Running() {
		return d
	}
	return siteDriver{d, control}
}

type siteDriver struct {
	driver.Driver
	control *cusim.Control
}

// Record implements driver.Driver.
func (d siteDriver) Record(e driver.Event, s driver.Stream) error {
	d.control.SetSite(site())
	return d.Driver.Record(e, s)
}

// Wait implements driver.Driver.
func (d siteDriver) Wait(s driver.Stream, e driver.Event) error {
	d.control.SetSite(site())
	return d.Driver.Wait(s, e)
}

// SyncEvent implements driver.Driver.
func (d siteDriver) SyncEvent(e driver.Event) error {
	d.control.SetSite(site())
	return d.Driver.SyncEvent(e)
}

// module is the beginning of the names of the functions of this module.
const module = "github.com/tensorpipe-go/tensorpipe/"

// sites is how many functions a call site has, at most.
const sites = 24

// more ends a site whose outer functions are left out.
const more = " < ..."

// site returns the functions of this module that make the present call, the innermost first, separated by " < ",
// as in "cudaipc.(*gpu).order < cudaipc.(*Stream).WaitFor".
func site() string {
	var pcs [200]uintptr
	return join(pcs[:runtime.Callers(3, pcs[:])], sites)
}

// join returns at most n functions of a stack as site does.
func join(stack []uintptr, n int) string {
	frames := runtime.CallersFrames(stack)
	var names []string
	for next := true; next; {
		var f runtime.Frame
		f, next = frames.Next()
		name, ok := strings.CutPrefix(f.Function, module)
		switch {
		case ok && len(names) == n:
			return strings.Join(names, " < ") + more
		case ok:
			names = append(names, name[strings.LastIndexByte(name, '/')+1:])
		}
	}
	return strings.Join(names, " < ")
}
