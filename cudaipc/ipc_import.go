package cudaipc

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Bounds of what one channel has mapped of its peer at a time.
const (
	maxImportedMemory = 1 << 17 // allocations: at 2 MiB each, more than a GPU has
	maxImportedEvents = 1 << 12 // a further one replaces the one that was opened first
)

// importKey names memory or an event of another process, as mapped for one device.
type importKey struct {
	gpu    *gpu
	handle driver.IPCHandle
}

// importedMemory is mapped memory of another process.
type importedMemory struct {
	ptr     driver.Ptr
	size    int
	users   int                        // channels
	streams map[driver.Stream]struct{} // whose work has used it
}

// importTable has the memory that the channels of a Kind have mapped. Each allocation is mapped once, because the
// driver may refuse to map it twice, and unmapped when the last channel that uses it has closed. It stays until then,
// because unmapping waits for the device.
type importTable struct {
	mu   sync.Mutex
	all  map[importKey]*importedMemory
	open map[driver.IPCHandle]int // mappings, also those that are being unmapped or could not be
}

// importSet has what one channel uses of its peer.
type importSet struct {
	table                *importTable
	maxMemory, maxEvents int

	mu     sync.Mutex
	closed bool
	mapped map[importKey]struct{} // keys of table
	events map[importKey]driver.Event
	opened fifo.Queue[importKey] // keys of events, the oldest first
}

func newImportSet(k *Kind) *importSet {
	return &importSet{
		table: &k.imports, maxMemory: maxImportedMemory, maxEvents: maxImportedEvents,
		mapped: make(map[importKey]struct{}), events: make(map[importKey]driver.Event),
	}
}

// with calls f, which may use what memory and event return; stop and close wait for it. The error is that of
// f, or channel.ErrClosed after stop and close.
func (s *importSet) with(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return channel.ErrClosed
	}
	return f()
}

// stop makes later calls of with fail.
func (s *importSet) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// memory returns the allocation that h names, mapped for use on user, a stream. The context must be
// current. The error matches channel.ErrProtocol if the peer has described too many allocations, or is that
// of the driver. It is for a function that runs in with, as is event.
func (s *importSet) memory(user *Stream, h *driver.IPCHandle) (ptr driver.Ptr, size int, err error) {
	t, key := s.table, importKey{user.gpu, *h}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.all[key]
	if _, own := s.mapped[key]; !own {
		if len(s.mapped) >= s.maxMemory {
			return 0, 0, fmt.Errorf("%w: more than %d allocations", channel.ErrProtocol, s.maxMemory)
		}
		if m == nil {
			if m, err = t.mapMemory(key); err != nil {
				return 0, 0, err
			}
			t.all[key] = m
		}
		m.users++
		s.mapped[key] = struct{}{}
	}
	m.streams[user.handle] = struct{}{}
	return m.ptr, m.size, nil
}

// mapMemory maps memory of another process. The context must be current, and the caller holds mu.
func (t *importTable) mapMemory(key importKey) (*importedMemory, error) {
	d := key.gpu.driver
	ptr, err := d.OpenMem(&key.handle)
	if err != nil {
		return nil, key.gpu.refusal(err)
	}
	if t.open == nil {
		t.all, t.open = make(map[importKey]*importedMemory), make(map[driver.IPCHandle]int)
	}
	t.open[key.handle]++
	_, size, err := d.AddressRange(ptr)
	if err != nil {
		return nil, errors.Join(err, t.closed(key, d.CloseMem(ptr))) // no work has used it
	}
	return &importedMemory{ptr: ptr, size: size, streams: make(map[driver.Stream]struct{})}, nil
}

// closed returns err, the result of unmapping memory. After an error the memory counts as mapped until the process
// ends. The caller holds mu.
func (t *importTable) closed(key importKey, err error) error {
	if err != nil {
		return fmt.Errorf("cudaipc: memory of another process stays mapped on %v: %w", key.gpu.device, err)
	}
	if t.open[key.handle]--; t.open[key.handle] == 0 {
		delete(t.open, key.handle)
	}
	return nil
}

// mapped reports whether the memory that h names may be mapped in this process.
func (t *importTable) mapped(h driver.IPCHandle) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[h] > 0
}

// event returns the event that h names, for use on g. The context must be current. Beyond maxEvents it closes
// the event that was opened first, which does not wait: work that waits for it goes on to do so. The error is
// that of the driver.
func (s *importSet) event(g *gpu, h *driver.IPCHandle) (driver.Event, error) {
	key := importKey{g, *h}
	if e, ok := s.events[key]; ok {
		return e, nil
	}
	if len(s.events) >= s.maxEvents {
		if err := s.closeFirstEvent(); err != nil {
			return 0, err
		}
	}
	e, err := g.driver.OpenEvent(h)
	if err != nil {
		return 0, g.refusal(err)
	}
	s.events[key] = e
	s.opened.Push(key)
	return e, nil
}

// closeFirstEvent closes the event that was opened first, which may be one of another GPU.
func (s *importSet) closeFirstEvent() error {
	key := s.opened.Pop()
	e := s.events[key]
	delete(s.events, key)
	if err := key.gpu.enter(); err != nil {
		return err
	}
	defer key.gpu.leave()
	return key.gpu.driver.DestroyEvent(e)
}

// close unmaps what no other channel uses. It does not wait for a device: goroutines do that, for which Close of
// the Kind waits.
func (s *importSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	left := make(map[*gpu][]func() error)
	for key := range s.mapped {
		if m := s.table.release(key); m != nil {
			left[key.gpu] = append(left[key.gpu], func() error { return s.table.unmap(key, m) })
		}
	}
	for key, e := range s.events {
		left[key.gpu] = append(left[key.gpu], func() error { return key.gpu.driver.DestroyEvent(e) })
	}
	s.mapped, s.events = nil, nil
	s.opened.Clear()
	for g, calls := range left {
		g.closeLater(calls)
	}
}

// release ends the use of memory by one channel, and returns the memory if that was the last one.
func (t *importTable) release(key importKey) *importedMemory {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.all[key]
	if m.users--; m.users > 0 {
		return nil
	}
	delete(t.all, key)
	return m
}

// unmap waits for the work that uses m and unmaps m. The driver's documentation does not promise that
// cuIpcCloseMemHandle waits. The context must be current.
func (t *importTable) unmap(key importKey, m *importedMemory) error {
	var all []error
	for s := range m.streams {
		all = append(all, key.gpu.driver.SyncStream(s))
	}
	err := key.gpu.driver.CloseMem(m.ptr)
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(append(all, t.closed(key, err))...)
}

// closeLater makes calls of the driver, with the context of g, on a new goroutine. Close of the Kind returns
// their errors, of the first failed call of closeLater.
func (g *gpu) closeLater(calls []func() error) {
	g.background.Go(func() {
		err := g.enter()
		if err == nil {
			defer g.leave()
			var all []error
			for _, call := range calls {
				all = append(all, call())
			}
			err = errors.Join(all...)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closeErr = cmp.Or(g.closeErr, err)
	})
}
