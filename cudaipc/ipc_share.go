package cudaipc

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/channel"
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

// newSharedEvent returns an event whose last peer has ended, or a new one. The context must be current.
func (g *gpu) newSharedEvent() (*sharedEvent, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for process, list := range g.retired {
		if !processLives(process) {
			g.retired[process] = list[:len(list)-1]
			if len(list) == 1 {
				delete(g.retired, process)
			}
			return list[len(list)-1], nil
		}
	}
	handle, err := g.driver.NewEvent(driver.EventDisableTiming | driver.EventInterprocess)
	if err != nil {
		return nil, err
	}
	g.shared = append(g.shared, handle)
	ipc, err := g.driver.EventHandle(handle)
	if err != nil {
		return nil, err
	}
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

// streamOf returns the stream of b, or the default stream of g if it has none.
func (g *gpu) streamOf(b device.Buffer) (*Stream, error) {
	if s, ok := b.Stream().(*Stream); ok {
		return s, nil
	}
	return g.defaultStream()
}

// hasHandle reports whether other processes can map m: memory of the allocator, and memory of the
// application unless it comes from a pool or from virtual memory management.
func (g *gpu) hasHandle(m *Memory) bool {
	if m.block != nil {
		return true
	}
	v, err := g.driver.PointerAttribute(driver.PointerLegacyIPC, m.ptr)
	return err == nil && v != 0
}

// export returns the base address of the allocation of m and its handle, and records that the process may
// map it. The context must be current.
func (g *gpu) export(m *Memory, process int) (driver.Ptr, driver.IPCHandle, error) {
	if m.block == nil {
		base, _, err := g.driver.AddressRange(m.ptr)
		if err != nil {
			return 0, driver.IPCHandle{}, err
		}
		h, err := g.driver.MemHandle(base)
		return base, h, err
	}
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	s := m.block.segment
	if len(s.importers) == 0 {
		h, err := g.driver.MemHandle(s.base)
		if err != nil {
			return 0, h, err
		}
		s.handle = h
	}
	s.importers.add(process)
	return s.base, s.handle, nil
}

// exported reports whether another process may have mapped s. The caller holds the allocator's mu.
func (s *segment) exported() bool { return s.importers.live() }

// processLives reports whether another process exists. 0 stands for one that is not known, which may. A
// peer in this process unmaps when its Kind is closed.
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

// maxImports bounds the allocations and events of one peer that one channel maps.
const maxImports = 1 << 14

// importKey names memory or an event of another process, as mapped for one device.
type importKey struct {
	gpu    *gpu
	handle driver.IPCHandle
}

// imported is mapped memory, or an event, of another process.
type imported struct {
	ptr   driver.Ptr // 0 for an event
	size  int
	event driver.Event
	users int // channels
}

// importTable has the memory and events that the channels of a Kind have mapped. Each is mapped once, because the
// driver may refuse to map it twice, and unmapped when the last channel that uses it has closed.
type importTable struct {
	mu  sync.Mutex
	all map[importKey]*imported
}

// importSet has what one channel uses of an importTable.
type importSet struct {
	table *importTable

	mu     sync.Mutex
	closed bool
	keys   map[importKey]struct{}
}

// with calls f, which may use what memory and event return; close waits for it. The error is that of f,
// or channel.ErrClosed after close.
func (s *importSet) with(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return channel.ErrClosed
	}
	return f()
}

// memory returns the allocation that h names, mapped for use on g. The context must be current. The
// error matches channel.ErrProtocol if the peer has described too much memory, or is that of the
// driver. It is for a function that runs in with, as are event and use.
func (s *importSet) memory(g *gpu, h *driver.IPCHandle) (*imported, error) {
	return s.use(importKey{g, *h}, func(i *imported) (err error) {
		if i.ptr, err = g.driver.OpenMem(h); err != nil {
			return err
		}
		if _, i.size, err = g.driver.AddressRange(i.ptr); err != nil {
			_ = g.driver.CloseMem(i.ptr)
		}
		return err
	})
}

// event returns the event that h names, for use on g, as memory does.
func (s *importSet) event(g *gpu, h *driver.IPCHandle) (driver.Event, error) {
	i, err := s.use(importKey{g, *h}, func(i *imported) (err error) {
		i.event, err = g.driver.OpenEvent(h)
		return err
	})
	if err != nil {
		return 0, err
	}
	return i.event, nil
}

// use returns what key names, and opens it if no channel has done so.
func (s *importSet) use(key importKey, open func(*imported) error) (*imported, error) {
	t := s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.all[key]
	if _, own := s.keys[key]; own {
		return i, nil
	}
	if len(s.keys) >= maxImports {
		return nil, fmt.Errorf("%w: more than %d allocations and events", channel.ErrProtocol, maxImports)
	}
	if i == nil {
		i = &imported{}
		if err := open(i); err != nil {
			return nil, err
		}
		if t.all == nil {
			t.all = make(map[importKey]*imported)
		}
		t.all[key] = i
	}
	i.users++
	if s.keys == nil {
		s.keys = make(map[importKey]struct{})
	}
	s.keys[key] = struct{}{}
	return i, nil
}

// close unmaps what no other channel uses. It does not wait for a device.
func (s *importSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for key := range s.keys {
		s.table.release(key)
	}
	s.keys = nil
}

// release unmaps what key names, if no other channel uses it. The driver waits for the device then, so
// that another goroutine does it, for which Close of the Kind waits.
func (t *importTable) release(key importKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.all[key]
	if i.users--; i.users > 0 {
		return
	}
	delete(t.all, key)
	key.gpu.background.Go(func() {
		if key.gpu.enter() != nil {
			return // closed, or the device has failed
		}
		defer key.gpu.leave()
		// After an error of the driver nothing more can be done.
		if i.ptr != 0 {
			_ = key.gpu.driver.CloseMem(i.ptr)
		} else {
			_ = key.gpu.driver.DestroyEvent(i.event)
		}
	})
}
