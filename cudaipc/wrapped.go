package cudaipc

import (
	"errors"
	"fmt"
	"maps"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// wrappedAllocation is an allocation of the application that other processes may have mapped.
type wrappedAllocation struct {
	base      driver.Ptr
	importers processes
}

// fewWrapped is the number of wrappedAllocations up to which none is removed.
const fewWrapped = 64

// wrappedHandle returns the base address of an allocation of the application and its handle for other
// processes, by any address in it. The context must be current.
func (g *gpu) wrappedHandle(p driver.Ptr) (base driver.Ptr, h driver.IPCHandle, err error) {
	if base, _, err = g.driver.AddressRange(p); err == nil {
		h, err = g.memHandle(base)
	}
	return base, h, err
}

// addImporter records that the process may map the allocation of the application at base with the handle h.
// The context must be current.
func (g *gpu) addImporter(base driver.Ptr, h driver.IPCHandle, process int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.wrapped) >= max(fewWrapped, 2*g.wrappedLeft) {
		g.removeWrapped()
		g.wrappedLeft = len(g.wrapped)
	}
	w := g.wrapped[h]
	if w == nil {
		w = &wrappedAllocation{base: base}
		if g.wrapped == nil {
			g.wrapped = make(map[driver.IPCHandle]*wrappedAllocation)
		}
		g.wrapped[h] = w
	}
	w.importers.add(process)
}

// removeWrapped removes the allocations that the application has freed, and those without a living importer. The
// caller holds mu.
func (g *gpu) removeWrapped() {
	maps.DeleteFunc(g.wrapped, func(h driver.IPCHandle, w *wrappedAllocation) bool {
		base, now, err := g.wrappedHandle(w.base)
		return err != nil || base != w.base || now != h || !w.importers.live()
	})
}

// CheckFree returns nil if the application may free the device memory at p as far as other processes are
// concerned. The error matches ErrMapped if cuda_ipc has sent a tensor in this allocation to a process that
// has not ended or is not known, device.ErrMemory if p is no device memory of this Kind, ErrClosed, or a
// [driver.CallError]. See [Kind.Wrap].
func (k *Kind) CheckFree(p driver.Ptr) error {
	d, err := k.DeviceOf(p)
	if err != nil {
		return err
	}
	g, err := k.gpuOf(d)
	if err != nil {
		return err
	}
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	has, err := g.hasHandle(p)
	if err != nil {
		return fmt.Errorf("cudaipc: query the handle of memory at %#x: %w", uintptr(p), err)
	}
	if !has {
		return nil
	}
	_, h, err := g.wrappedHandle(p)
	if err != nil {
		return fmt.Errorf("cudaipc: %#x has no handle (%w): %w", uintptr(p), err, device.ErrMemory)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.wrapped[h]; w != nil && w.importers.live() || k.imports.mapped(h) {
		return fmt.Errorf("cudaipc: memory at %#x: %w", uintptr(p), ErrMapped)
	}
	return nil
}

// ErrMapped matches errors about memory that a living process may have mapped.
var ErrMapped = errors.New("another process may have mapped the allocation")
