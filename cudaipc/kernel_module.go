package cudaipc

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

//go:embed kernels.ptx
var kernelText []byte

// Limits of kernels.ptx and of launches.
const (
	maxThreads = 256     // of a block
	maxBlocks  = 1 << 20 // of a launch of sum, whose blocks may have several rows
)

// kernelModule has the kernels of one GPU, which it loads when they are first used.
type kernelModule struct {
	gpu *gpu

	mu        sync.Mutex
	loaded    bool
	module    driver.Module
	functions map[string]driver.Function
}

// function returns the kernel with this name. The context must be current. The error is that of the
// driver.
func (m *kernelModule) function(name string) (driver.Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.functions[name]; ok {
		return f, nil
	}
	if !m.loaded {
		module, err := m.gpu.driver.LoadModule(kernelText)
		if err != nil {
			return 0, fmt.Errorf("cudaipc: kernels of %v: %w", m.gpu.device, err)
		}
		m.module, m.loaded, m.functions = module, true, make(map[string]driver.Function)
	}
	f, err := m.gpu.driver.Function(m.module, name)
	if err != nil {
		return 0, fmt.Errorf("cudaipc: kernel %s of %v: %w", name, m.gpu.device, err)
	}
	m.functions[name] = f
	return f, nil
}

// close unloads the kernels. The device must have no work left, and the context must be current.
func (m *kernelModule) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded {
		return nil
	}
	m.loaded, m.functions = false, nil
	return m.gpu.driver.UnloadModule(m.module)
}

// launch enqueues the kernel with this name on stream. args are its parameters, all of 8 bytes. The
// context must be current.
func (g *gpu) launch(stream driver.Stream, name string, blocks, threads int, args ...uint64) error {
	f, err := g.kernels.function(name)
	if err != nil {
		return err
	}
	packed := make([]byte, 0, 8*len(args))
	for _, a := range args {
		packed = binary.NativeEndian.AppendUint64(packed, a)
	}
	grid, block := driver.Dim{X: uint32(blocks), Y: 1, Z: 1}, driver.Dim{X: uint32(threads), Y: 1, Z: 1}
	return g.driver.Launch(f, grid, block, 0, stream, packed)
}

// blocksFor returns the number of blocks of maxThreads threads for n elements. The limit of the
// driver, 2^31-1, is beyond the memory of any device.
func blocksFor(n int) int { return (n + maxThreads - 1) / maxThreads }

// Sleep enqueues on stream, a stream of k, a kernel that ends after d. It is for tests and examples
// that depend on the order of streams: later work of stream begins after that. The error matches
// device.ErrStream for another stream, or ErrClosed, or is that of the driver.
func (k *Kind) Sleep(stream device.Stream, d time.Duration) error {
	s, ok := stream.(*Stream)
	if !ok || s.gpu.kind != k {
		return fmt.Errorf("cudaipc: sleep needs a stream of the device kind: %w", device.ErrStream)
	}
	if err := s.gpu.enter(); err != nil {
		return err
	}
	defer s.gpu.leave()
	return s.gpu.launch(s.handle, "sleep_ns", 1, 1, uint64(max(d, 0)))
}
