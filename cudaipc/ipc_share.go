package cudaipc

import (
	"errors"
	"maps"
	"os"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// sharedEvent is an event of this process that a peer waits for and records.
type sharedEvent struct {
	gpu    *gpu
	handle driver.Event
	ipc    driver.IPCHandle
}

// processes are those that may have mapped memory of this process.
type processes map[int]struct{}

// add adds a process; 0 stands for one that is not known.
func (p *processes) add(process int) {
	if *p == nil {
		*p = make(processes)
	}
	(*p)[process] = struct{}{}
}

// live removes those that have ended, and reports whether any is left.
func (p *processes) live() bool {
	maps.DeleteFunc(*p, func(process int, _ struct{}) bool { return !processLives(process) })
	return len(*p) > 0
}

// takeEvent returns an event of g for one transfer to the peer of p. The context must be current.
func (p *ipcEnd) takeEvent(g *gpu) (*sharedEvent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if list := p.events[g]; len(list) > 0 {
		p.events[g] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	return g.newSharedEvent()
}

// putEvent keeps e for later transfers to the same peer.
func (p *ipcEnd) putEvent(e *sharedEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		e.gpu.retire(e, p.peer)
		return
	}
	p.events[e.gpu] = append(p.events[e.gpu], e)
}

// newSharedEvent returns an event that no live process knows. The context must be current.
func (g *gpu) newSharedEvent() (*sharedEvent, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := len(g.unshared) - 1; last >= 0 {
		e := g.unshared[last]
		g.unshared = g.unshared[:last]
		return e, nil
	}
	for process, list := range g.retired {
		if !processLives(process) {
			g.retired[process] = list[:len(list)-1]
			if len(list) == 1 {
				delete(g.retired, process)
			}
			return list[len(list)-1], nil
		}
	}
	handle, ipc, err := g.newInterprocessEvent()
	if err != nil {
		return nil, err
	}
	g.shared = append(g.shared, handle)
	return &sharedEvent{gpu: g, handle: handle, ipc: ipc}, nil
}

// retire keeps e until the process, which may still record it, has ended.
func (g *gpu) retire(e *sharedEvent, process int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retired == nil {
		g.retired = make(map[int][]*sharedEvent)
	}
	g.retired[process] = append(g.retired[process], e)
}

// keepUnshared keeps events that no other process knows.
func (g *gpu) keepUnshared(events []*sharedEvent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unshared = append(g.unshared, events...)
}

// streamOf returns the stream of b, or the default stream of g if it has none.
func (g *gpu) streamOf(b device.Buffer) (*Stream, error) {
	if s, ok := b.Stream().(*Stream); ok {
		return s, nil
	}
	return g.defaultStream()
}

// hasHandle reports whether other processes can map memory of the application at p: unless it comes from a pool
// or from virtual memory management.
func (g *gpu) hasHandle(p driver.Ptr) (bool, error) {
	v, err := g.driver.PointerAttribute(driver.PointerLegacyIPC, p)
	return v != 0, err
}

// Reasons why a tensor in memory of the application is copied once more.
const (
	noHandle        = "their memory has no handle for other processes"
	manyAllocations = "the peer has mapped many allocations of the application, which stay mapped until the channel closes"
)

// maxWrapped bounds the allocations of the application that one channel lets the peer map.
const maxWrapped = 1 << 10

// export returns the base address of the allocation of m and its handle, and records that the peer may map
// it. If it returns a reason, m is memory of the application that must be copied to memory of the Kind
// instead. The context must be current.
func (p *ipcEnd) export(m *Memory) (base driver.Ptr, h driver.IPCHandle, reason string, err error) {
	g := m.gpu
	if m.block != nil {
		h, err = g.memory.export(m.block.segment, p.peer)
		return m.block.segment.base, h, "", err
	}
	if has, err := g.hasHandle(m.ptr); !has || err != nil { // a copy is always right
		return 0, h, noHandle, nil
	}
	if base, h, err = g.wrappedHandle(m.ptr); err != nil {
		return 0, h, "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.wrapped[h]; !known {
		if len(p.wrapped) >= p.maxWrapped {
			return 0, h, manyAllocations, nil
		}
		p.wrapped[h] = struct{}{}
		g.addImporter(base, h, p.peer)
	}
	return base, h, "", nil
}

// export returns the handle of s, and records that the process may map it. The context must be current.
func (a *allocator) export(s *segment, process int) (driver.IPCHandle, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(s.importers) == 0 {
		h, err := a.gpu.memHandle(s.base)
		if err != nil {
			return h, err
		}
		s.handle = h
	}
	s.importers.add(process)
	return s.handle, nil
}

// exported reports whether a process may have mapped s. The caller holds mu.
func (a *allocator) exported(s *segment) bool {
	return s.importers.live() || a.gpu.kind.imports.mapped(s.handle)
}

// processLives reports whether another process exists. 0 stands for one that is not known, which may. The
// importTable has the mappings of this process.
func processLives(pid int) bool {
	if pid == 0 || pid == os.Getpid() {
		return pid == 0
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	err = p.Signal(syscall.Signal(0))
	return !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH)
}
