package cudaipc

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// gpu is one device of a Kind.
type gpu struct {
	kind     *Kind
	driver   driver.Driver
	device   device.Device
	uuid     driver.UUID
	unusable error                       // the reason; set by New only
	refused  atomic.Pointer[HandleError] // nil if other processes can open handles

	start   sync.Mutex // guards the initialisation
	context driver.Context
	started bool

	memory     allocator
	pinned     pinnedPool
	kernels    kernelModule
	background sync.WaitGroup // goroutines that wait for the device

	outboxMu sync.Mutex
	outboxes []*outbox // all
	idle     []*outbox // without a user

	mu          sync.Mutex
	streams     []driver.Stream        // idle, for reuse
	all         []driver.Stream        // every stream that was created
	events      []driver.Event         // idle, for reuse
	allEvents   []driver.Event         // every event of takeEvent
	shared      []driver.Event         // every event for other processes
	retired     map[int][]*sharedEvent // of shared, by the process that may still use them
	unshared    []*sharedEvent         // of shared, that no process knows
	wrapped     map[driver.IPCHandle]*wrappedAllocation
	wrappedLeft int     // of wrapped, when some were removed last
	standard    *Stream // the default stream
	closeErr    error   // of closeLater
	foreign     *Stream // waits for work of other devices that uses memory of this one
}

func newGPU(k *Kind, index int, o Options) *gpu {
	g := &gpu{kind: k, driver: k.driver, device: device.Device{Kind: Name, Index: index}}
	g.memory = allocator{gpu: g, limit: o.MemoryLimit, pending: pendingUses[*block]{gpu: g}}
	g.pinned = pinnedPool{gpu: g, pending: pendingUses[*pinnedBlock]{gpu: g}}
	g.kernels = kernelModule{gpu: g}
	return g
}

// inspect reads the properties of the device without a context, and returns an error with the
// reason if it cannot be used.
func (g *gpu) inspect() error {
	fault := func(reason string, err error) error {
		if err != nil {
			return fmt.Errorf("cudaipc: %v: %s: %w", g.device, reason, err)
		}
		return fmt.Errorf("cudaipc: %v: %s", g.device, reason)
	}
	var err error
	if g.uuid, err = g.driver.DeviceUUID(g.device.Index); err != nil {
		return fault("it has no identity", err)
	}
	unified, err := g.driver.DeviceAttribute(driver.AttributeUnifiedAddressing, g.device.Index)
	if err != nil || unified == 0 {
		return fault("it does not share the address space of the host", err)
	}
	mode, err := g.driver.DeviceAttribute(driver.AttributeComputeMode, g.device.Index)
	if err != nil || mode == computeModeProhibited {
		return fault("its compute mode prohibits its use", err)
	}
	g.inspectHandles()
	return nil
}

// computeModeProhibited is the compute mode in which no process may use the device.
const computeModeProhibited = 2

// enter makes the context of g current for the calling goroutine, which must call leave afterwards
// if the error is nil. The first call initialises the context. The error matches ErrClosed, is a
// *ContextError, or that of the driver.
func (g *gpu) enter() error {
	if err := g.initialise(); err != nil {
		return err
	}
	return g.driver.Push(g.context)
}

func (g *gpu) leave() { g.driver.Pop() }

func (g *gpu) initialise() error {
	g.start.Lock()
	defer g.start.Unlock()
	if g.kind.closed.Load() {
		return ErrClosed
	}
	if g.started {
		return nil
	}
	c, err := g.driver.PrimaryContextRetain(g.device.Index)
	if err != nil {
		return &ContextError{Device: g.device, Err: err}
	}
	g.context, g.started = c, true
	return nil
}

// ContextError reports that the context of a device cannot be initialised, at the first use of the device
// and at each later one. It matches device.ErrDevice.
type ContextError struct {
	Device device.Device
	Err    error // that of the driver
}

func (e *ContextError) Error() string {
	return fmt.Sprintf("cudaipc: %v cannot be used: %v", e.Device, e.Err)
}

// Unwrap returns device.ErrDevice and e.Err.
func (e *ContextError) Unwrap() []error { return []error{device.ErrDevice, e.Err} }

// takeStream returns an unused stream that has no work left, or a new one. The context must be current.
func (g *gpu) takeStream() (driver.Stream, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A stream that still has work would delay that of its next user.
	for i, s := range g.streams[:min(len(g.streams), maxBusyStreams)] {
		if done, err := g.driver.StreamDone(s); done && err == nil {
			g.streams = slices.Delete(g.streams, i, i+1)
			return s, nil
		}
	}
	s, err := g.driver.NewStream()
	if err != nil {
		return 0, err
	}
	g.all = append(g.all, s)
	if len(g.all)%collectedStreams == 0 {
		go runtime.GC() // finds streams that are unreachable
	}
	return s, nil
}

// maxBusyStreams bounds the unused streams that takeStream asks for work, the oldest ones.
const maxBusyStreams = 16

// collectedStreams is the number of new streams after which a garbage collection starts.
const collectedStreams = 64

// putStream keeps s for reuse. Streams are not destroyed before Close, because memory is kept for
// reuse in the order of the stream on which it was used.
func (g *gpu) putStream(s driver.Stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streams = append(g.streams, s)
}

// takeEvent returns an idle event, or a new one without timing. The context must be current.
func (g *gpu) takeEvent() (driver.Event, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.events); n > 0 {
		e := g.events[n-1]
		g.events = g.events[:n-1]
		return e, nil
	}
	e, err := g.driver.NewEvent(driver.EventDisableTiming)
	if err != nil {
		return 0, err
	}
	g.allEvents = append(g.allEvents, e)
	return e, nil
}

// putEvent keeps e for reuse. Streams that wait for it go on to do so, because they wait for the
// record and not for the event.
func (g *gpu) putEvent(e driver.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, e)
}

// order makes later work on after wait for the present work on before, a stream of g. after may be
// a stream of another device. The context of g must be current.
func (g *gpu) order(after, before driver.Stream) error {
	if after == before {
		return nil
	}
	e, err := g.takeEvent()
	if err != nil {
		return err
	}
	defer g.putEvent(e)
	if err := g.driver.Record(e, before); err != nil {
		return err
	}
	return g.driver.Wait(after, e)
}

// defaultStream returns the stream for buffers without one.
func (g *gpu) defaultStream() (*Stream, error) { return g.ownStream(&g.standard) }

// ownStream returns the stream in *field, a field of g, which it creates at first.
func (g *gpu) ownStream(field **Stream) (*Stream, error) {
	g.mu.Lock()
	s := *field
	g.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := g.newStream()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if *field == nil {
		*field = s
	}
	return *field, nil
}

// drain waits until the streams of g have no work left, and for the goroutines that wait for g.
func (g *gpu) drain() error {
	g.mu.Lock()
	streams := slices.Clone(g.all)
	g.mu.Unlock()
	if len(streams) == 0 {
		return nil
	}
	if err := g.enter(); err != nil {
		return err
	}
	var all []error
	for _, s := range streams {
		all = append(all, g.driver.SyncStream(s))
	}
	g.leave()
	g.background.Wait()
	return errors.Join(all...)
}

// close frees everything of g, if g was ever used. If another process may have mapped memory of g, that memory and
// the context stay until the process ends, because freeing them would pull the memory from under the peer.
func (g *gpu) close() error {
	g.start.Lock()
	defer g.start.Unlock()
	if !g.started {
		return nil
	}
	if err := g.driver.Push(g.context); err != nil {
		return err
	}
	var all []error
	exported, err := g.memory.close()
	all = append(all, err, g.pinned.close(), g.kernels.close())
	mapped, err := g.closeOutboxes()
	all = append(all, err)
	exported = exported || mapped
	g.mu.Lock()
	all = append(all, g.closeErr)
	for _, e := range g.allEvents { // those that are in use, too
		all = append(all, g.driver.DestroyEvent(e))
	}
	for _, s := range g.all {
		all = append(all, g.driver.DestroyStream(s))
	}
	if !exported {
		for _, e := range g.shared {
			all = append(all, g.driver.DestroyEvent(e))
		}
	}
	g.mu.Unlock()
	g.leave()
	if !exported {
		all = append(all, g.driver.PrimaryContextRelease(g.device.Index))
	}
	return errors.Join(all...)
}
