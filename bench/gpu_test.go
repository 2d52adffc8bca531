package bench

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// simulatedGPUs returns the device kind of the simulated GPUs, which is closed at the end of the test.
func simulatedGPUs(t *testing.T) *cudaipc.Kind {
	t.Helper()
	d, err := driver.Open(cusim.Library(t))
	require.NoError(t, err)
	kind, err := cudaipc.New(d, cudaipc.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kind.Close()) })
	return kind
}

// onGPUs returns the Spec of a short measurement with messages of size bytes between two GPUs.
func onGPUs(size int) Spec {
	s := small(size, false)
	s.Channels = nil
	s.Device, s.ServerDevice = device.Device{Kind: cudaipc.Name}, device.Device{Kind: cudaipc.Name, Index: 1}
	return s
}

// TestGPUArenaSlots tests that slots on a GPU hold the contents of their messages, that a changed byte is
// found, and that the bytes of an earlier batch are not accepted.
func TestGPUArenaSlots(t *testing.T) {
	kind := simulatedGPUs(t)
	for _, size := range []int{0, 1, 65, 3 << 20} {
		s := onGPUs(size)
		for _, server := range []bool{false, true} {
			m, err := newMemory(s, kind, server)
			require.NoError(t, err)
			require.NoError(t, m.resize(6, size))
			require.NoError(t, m.fill(6, 10))
			require.NoError(t, m.check(6, 10), "slots do not overlap")
			require.Len(t, m.message(5, true).Tensors, min(size, 1))
			require.Len(t, m.allocation(5).Tensors, min(size, 1))
			if size == 0 {
				continue
			}
			a := m.(*gpuArena)
			require.Equal(t, map[bool]device.Device{false: s.Device, true: s.ServerDevice}[server], a.slots[5].Device())
			require.Equal(t, a.target, m.message(5, true).Tensors[0].TargetDevice)
			require.True(t, m.message(5, false).Tensors[0].TargetDevice.IsZero())
			require.NotEqual(t, a.slots[0].Stream(), a.slots[1].Stream(), "messages in flight do not wait for each other")
			require.ErrorIs(t, m.check(6, 9), ErrCorrupt)
			require.NoError(t, kind.Copy(a.slots[3].Slice(size-1, 1), device.Bytes([]byte{^a.host[size-1]})))
			require.ErrorContains(t, m.check(6, 10), "message 13 differs")
			require.NoError(t, m.resize(4, size))
			require.ErrorIs(t, m.check(1, 10), ErrCorrupt, "old bytes are not accepted")
			require.NoError(t, m.resize(7, size+1))
			require.NoError(t, m.fill(7, 1))
			require.NoError(t, m.check(7, 1))
			m.release()
		}
	}
}

func TestSpecOfGPUs(t *testing.T) {
	require.NoError(t, onGPUs(8).Check())
	for want, spoil := range map[string]func(*Spec){
		`device npu:0: want a GPU, such as cuda:0`:           func(s *Spec) { s.Device.Kind = "npu" },
		`device cpu:0: want a GPU, such as cuda:0`:           func(s *Spec) { s.ServerDevice = device.CPU() },
		`device cuda:1 of the server without one of the cli`: func(s *Spec) { s.Device = device.Device{} },
		`buffers "huge": tensors are in memory of cuda:0`:    func(s *Spec) { s.Buffers = BuffersHuge },
		`compression s2: tensors on GPUs are not compressed`: func(s *Spec) { s.Compression = pipe.CompressionS2 },
	} {
		s := onGPUs(8)
		spoil(&s)
		err := s.Check()
		require.ErrorIs(t, err, ErrSpec)
		require.ErrorContains(t, err, want)
	}
	path := onGPUs(8)
	path.Channels = []string{"basic"}
	require.ErrorContains(t, (Libtensorpipe{}).Check(path), "libtensorpipe is measured with host memory only")
	_, err := Go{}.Idle(t.Context(), path, 1, 1)
	require.ErrorIs(t, err, ErrSpec)
	_, err = Go{}.Busy(t.Context(), path, 1, 1)
	require.ErrorIs(t, err, ErrSpec)
}

// TestGPUsWithoutDriver tests that a measurement on a machine without a driver is a path that does not
// exist here, with the driver's reason.
func TestGPUsWithoutDriver(t *testing.T) {
	if _, err := driver.Open(""); err == nil {
		t.Skip("this machine has a driver")
	}
	_, err := Go{Child: child(t)}.Measure(t.Context(), onGPUs(8))
	require.ErrorIs(t, err, ErrPath)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "device cuda:0: driver: CUDA is not viable: ")
	_, err = DeviceCopy{}.Measure(t.Context(), onGPUs(1<<20), nil)
	require.ErrorIs(t, err, ErrPath)
}

// TestYardsticksOfGPUs tests that tensors on GPUs are compared with nothing that moves host memory, and
// tensors in host memory not with copies of the driver.
func TestYardsticksOfGPUs(t *testing.T) {
	for _, y := range []Yardstick{Memcpy{}, TCP{shell("exit 1")}} {
		r, err := y.Measure(t.Context(), onGPUs(1<<20), &Result{Transport: "uv", OneWayRoute: cudaipc.BasicName})
		require.NoError(t, err)
		require.Nil(t, r)
	}
	for _, s := range []Spec{heavy(), onGPUs(8)} {
		r, err := DeviceCopy{}.Measure(t.Context(), s, nil)
		require.NoError(t, err)
		require.Nil(t, r)
	}
}

func TestHandOvers(t *testing.T) {
	require.Equal(t, []int64{5, 7}, func() (out []int64) {
		for _, d := range handOvers([]int64{10, 20, 30}, []int64{15, 27}) {
			out = append(out, d.Nanoseconds())
		}
		return out
	}())
}
