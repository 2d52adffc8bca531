package cudaipc

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

// gpuCase is one of TensorPipe's tests of channels for GPUs: a tensor between two devices, or -1 for
// host memory.
type gpuCase struct {
	name     string
	from, to int
	host     bool // needs a channel that serves host memory
	size     int
}

// TensorPipe's tests of GPU channels: tensors move between the given devices, and only the contexts of
// these are initialised.
func TestParityDevices(t *testing.T) {
	for _, c := range []gpuCase{
		{name: "SendAcrossDevices", from: 0, to: 1, size: 256},
		{name: "SendReverseAcrossDevices", from: 1, to: 0, size: 256},
		{name: "SendAcrossNonDefaultDevices", from: 1, to: 1, size: 256},
		{name: "SendFromCpuToGpu", from: -1, to: 0, host: true, size: 1024},
		{name: "SendFromGpuToCpu", from: 0, to: -1, host: true, size: 1024},
		{name: "SendFromCpuToCpu", from: -1, to: -1, host: true, size: 1024},
	} {
		inDialects(t, func(t *testing.T, p *pair, host bool) {
			if c.host && !host {
				return // the channel does not serve host memory
			}
			if max(c.from, c.to) > 0 {
				p.second()
			}
			parity.Case(t, "tensorpipe/channel."+c.name, func(t *testing.T) {
				p.set("CUSIM_DELAY_US", "500")
				data := pattern(1, c.size)
				src, dst := p.tensor(c.from, data), p.tensor(c.to, make([]byte, c.size))
				p.start(t, src, dst)()
				require.Equal(t, data, p.bytesOf(dst))
				for _, d := range p.Devices() {
					active, err := p.Driver().PrimaryContextActive(d.Index)
					require.NoError(t, err)
					require.Equal(t, d.Index == c.from || d.Index == c.to, active, "%v", d)
				}
			})
		})
	}
}

// A tensor that is written by slow work on its stream, enqueued before Send, arrives as written.
func TestParityStreams(t *testing.T) {
	inDialects(t, func(t *testing.T, p *pair, _ bool) {
		parity.Case(t, "tensorpipe/channel.ReceiverWaitsForStartEvent", func(t *testing.T) {
			p.set("CUSIM_DELAY_US", "2000")
			src, dst := p.tensor(0, pattern(1, 4096)), p.tensor(0, make([]byte, 4096))
			require.NoError(t, p.Copy(src, device.Bytes(pattern(2, 4096))))
			p.start(t, src, dst)()
			require.Equal(t, pattern(2, 4096), p.bytesOf(dst))
		})
	})
}

// A tensor that begins within an allocation arrives.
func TestParityOffset(t *testing.T) {
	inDialects(t, func(t *testing.T, p *pair, _ bool) {
		parity.Case(t, "tensorpipe/channel.SendOffsetAllocation", func(t *testing.T) {
			data := pattern(1, 2000)
			src, dst := p.tensor(0, data), p.tensor(0, make([]byte, 2000))
			p.start(t, src.Slice(128, 1000), dst.Slice(500, 1000))()
			got := p.bytesOf(dst)
			require.Equal(t, data[128:1128], got[500:1500])
			require.Equal(t, make([]byte, 500), got[:500])
			require.Equal(t, make([]byte, 500), got[1500:])
		})
	})
}

// The descriptors have the form of TensorPipe's, and two of host memory cannot communicate.
func TestParityDescriptors(t *testing.T) {
	s := newFixture(t, Options{})
	f := NewBasic(s.Kind, basic.New())
	d := f.DeviceDescriptors()
	require.Len(t, d, 1+len(s.Devices()))
	cpu, gpu := d[device.CPU()], d[s.Devices()[0]]
	require.Equal(t, "\xb9\x02\xbd\x03cpu\xbd\x03any", cpu)
	require.Equal(t, "\xb9\x02\xbd\x04cuda\xbd\x03any", gpu)
	parity.Case(t, "tensorpipe/channel.CudaBasicCannotCommunicateCpuToCpu", func(t *testing.T) {
		require.False(t, f.CanCommunicate(cpu, cpu))
		require.True(t, f.CanCommunicate(cpu, gpu))
		require.True(t, f.CanCommunicate(gpu, cpu))
		require.True(t, f.CanCommunicate(gpu, gpu))
	})
	other := NewBasic(s.Kind, xth.New()).DeviceDescriptors()
	require.False(t, f.CanCommunicate(gpu, other[s.Devices()[0]]), "another host channel")
	require.False(t, f.CanCommunicate(gpu, "\xb9\x02\xbd\x03npu\xbd\x03any"), "another kind")
}

// With the work of all devices held back, every call returns, and the channels wait for no device. Transfers of cuda_xth
// complete then too. Those of cuda_basic, which holds no staging memory for a busy stream, complete after the release.
func TestNoCallWaitsForADevice(t *testing.T) {
	inDialects(t, func(t *testing.T, p *pair, host bool) {
		p.set("CUSIM_DELAY_US", "100")
		var waits []func()
		var sources, targets []device.Buffer
		for i := range 4 {
			sources = append(sources, p.tensor(i%2, pattern(i, 5<<20)))
			targets = append(targets, p.tensor((i+1)%2, make([]byte, 5<<20)))
		}
		before := p.blocking()
		p.simulator().HoldAll()
		defer p.simulator().ReleaseAll() // before the channel is closed
		for i := range sources {
			waits = append(waits, p.start(t, sources[i], targets[i]))
		}
		if !host {
			for i, wait := range waits {
				wait()
				queued, err := p.simulator().Queued(uintptr(targets[i].Stream().(*Stream).Handle()))
				require.NoError(t, err)
				require.Positive(t, queued)
			}
			waits = nil
		}
		require.Equal(t, before, p.blocking())
		p.simulator().ReleaseAll()
		for _, wait := range waits {
			wait()
		}
		require.Equal(t, before, p.blocking())
		for i, dst := range targets {
			require.True(t, bytes.Equal(pattern(i, 5<<20), p.bytesOf(dst)), "tensor %d", i)
		}
	})
}

// After 100 messages, 25 at once, 10,000 further ones, one after the other, create nothing: no memory, events and streams.
func TestManyMessagesUseTheSameMemory(t *testing.T) {
	inDialects(t, func(t *testing.T, p *pair, _ bool) {
		src, dst := p.tensor(0, pattern(1, 1000)), p.tensor(1, make([]byte, 1000))
		used := func() map[string]int {
			n := map[string]int{"held by the source's device": p.stats(src.Device()).Held, "held by the target's device": p.stats(dst.Device()).Held}
			for _, f := range []string{"cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate"} {
				n[f] = p.calls(f)
			}
			return n
		}
		for range 4 {
			var waits []func()
			if p.control != nil {
				p.control.HoldAll() // so that the messages use memory and events at the same time
			}
			for range 25 {
				waits = append(waits, p.start(t, src, dst))
			}
			if p.control != nil {
				p.control.ReleaseAll()
			}
			for _, wait := range waits {
				wait()
			}
			p.synchronize(dst.Stream())
		}
		before := used()
		for range race.Pick(10_000, 1000) {
			p.start(t, src, dst)()
			p.synchronize(dst.Stream()) // the memory is free then
		}
		require.Equal(t, before, used())
		require.Equal(t, pattern(1, 1000), p.bytesOf(dst))
	})
}

// A transfer of cuda_xth to another device delays the stream of the source, and no other stream of that
// device.
func TestXTHDelaysNoOtherStream(t *testing.T) {
	f := newFixture(t, Options{})
	p := openPair(t, f, xth.ForKind("cuda_xth", f.Kind), true)
	src, dst := f.tensor(0, pattern(1, 100)), f.tensor(1, make([]byte, 100))
	f.synchronize(dst.Stream())
	release := f.hold(dst.Stream().(*Stream))
	p.start(t, src, dst)()
	other, err := f.Alloc(f.zero, 100, nil) // on the default stream
	require.NoError(t, err)
	f.synchronize(other.Stream())
	written, err := src.Stream().Record()
	require.NoError(t, err)
	done, err := written.Done()
	require.NoError(t, err)
	require.False(t, done, "the source's stream waits for the copy")
	written.Release()
	release()
	require.Equal(t, pattern(1, 100), f.bytesOf(dst))
}
