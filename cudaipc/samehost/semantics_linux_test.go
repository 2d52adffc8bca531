package samehost_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inBothForms runs test as a subtest with direct copies and with staged ones.
func inBothForms(t *testing.T, test func(t *testing.T, r route)) {
	for _, r := range []route{direct, staged} {
		t.Run(r.name, func(t *testing.T) { test(t, r) })
	}
}

// While both processes hold back the work of their devices, Write and Read return at both ends, and no call
// of the driver waits.
func TestHostNeverWaits(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		p := r.start(t, nil, func(n *node) {
			in := n.stream(gpu(0))
			sent, got := n.filled(tensorSize, n.stream(gpu(0)), byte(1+n.Rank)), n.alloc(tensorSize, in)
			n.requireFilled(sent, byte(1+n.Rank))
			n.freeHost()
			n.control.HoldAll()
			blocking := n.control.Blocking()
			for range 6 { // more than the slots of an outbox
				op := n.WriteAsync(n.Context(), message(gpu(0), sent))
				n.readInto(got)
				require.NoError(n, op.Wait(n.Context()))
			}
			n.fill(sent, 0xee)
			require.Equal(n, blocking, n.control.Blocking())
			queued, err := n.control.Queued(uintptr(in.Handle()))
			require.NoError(n, err)
			require.Positive(n, queued)

			n.Send("returned")
			require.NoError(n, n.WaitFor("release"))
			n.control.ReleaseAll()
			n.requireFilled(got, byte(2-n.Rank))
			n.requireFilled(sent, 0xee)
		})
		for rank := range 2 {
			require.Equal(t, "returned", p.ReadLine(rank))
		}
		p.SendAll("release")
		p.finish()
	})
}

// pattern returns n bytes that differ from their neighbours. Nothing else has the memory, and the race
// detector makes each of many million bytes slow.
//
//go:norace
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8 + i>>16)
	}
	return p
}

// Memory of any origin is sent and received: views, memory of the application, such memory without a
// handle, and tensors larger than a slot of an outbox, or than all.
func TestMemory(t *testing.T) {
	pooled := func(n *node, size int, s *cudaipc.Stream) device.Buffer {
		require.NoError(n, n.control.Set("CUSIM_POOL", "1"))
		b := n.wrap(size, s)
		require.NoError(n, n.control.Set("CUSIM_POOL", ""))
		capable, err := n.kind.Driver().PointerAttribute(driver.PointerLegacyIPC, ptr(b))
		require.NoError(n, err)
		require.Zero(n, capable)
		return b
	}
	cases := []struct {
		name   string
		size   int
		memory func(n *node, size int, s *cudaipc.Stream) device.Buffer
	}{
		{"view", 1001, func(n *node, size int, s *cudaipc.Stream) device.Buffer {
			return n.alloc(size+200, s).Slice(101+n.Rank, size)
		}},
		{"of the application", 1001, (*node).wrap},
		{"view of the application", 1001, func(n *node, size int, s *cudaipc.Stream) device.Buffer { return n.wrap(size+200, s).Slice(3, size) }},
		{"of a pool", 1001, pooled},
		{"one byte", 1, (*node).alloc},
		{"three parts", 16<<20 + 5, (*node).alloc},
		{"six parts", 40<<20 + 1, (*node).alloc},
	}
	inBothForms(t, func(t *testing.T, r route) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				r.both(t, nil, func(n *node) {
					b := c.memory(n, c.size, n.stream(gpu(0)))
					if n.Rank == 0 {
						require.NoError(n, n.kind.Copy(b, device.Bytes(pattern(c.size))))
						n.write(gpu(0), b)
						return
					}
					n.readInto(b)
					require.True(n, bytes.Equal(pattern(c.size), n.bytesOf(b)), "the bytes differ")
				})
			})
		}
	})
}

// Descriptors, mappings, device memory and events do not grow with the number of messages.
func TestManyMessages(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		r.both(t, nil, func(n *node) {
			b := n.newBuffers()
			exchange := func(times int) {
				for i := range times {
					v := byte(i)
					if i%32 == 0 {
						n.fill(b.out[0], v)
						n.requireFilled(b.out[0], v)
					}
					op := n.WriteAsync(n.Context(), message(gpu(0), b.out[0]))
					n.readInto(b.in[0])
					require.NoError(n, op.Wait(n.Context()))
					if i%32 == 0 {
						n.requireFilled(b.in[0], v)
					}
				}
			}
			exchange(64)
			before, held, events := leakcheck.Begin(), n.held(), n.control.Calls("cuEventCreate")
			exchange(race.Pick(10_000, 500))
			require.Empty(n, before.Leaks())
			require.Equal(n, held, n.held())
			require.Equal(n, events, n.control.Calls("cuEventCreate"))
		})
	})
}

// Several pipes between two processes map the memory of the peer once, and unmap it with the last pipe.
func TestPipesShareMappings(t *testing.T) {
	direct.both(t, nil, func(n *node) {
		const pipes = 4
		all := []*node{n}
		for range pipes - 1 {
			further := *n
			all = append(all, &further)
		}
		s := n.stream(gpu(0))
		b := n.filled(tensorSize, s, 7)
		for i, f := range all {
			if i > 0 && n.Rank == 0 {
				f.accept()
			} else if i > 0 {
				f.dial(n.url)
			}
			if n.Rank == 0 {
				f.write(gpu(0), b)
			} else {
				n.requireFilled(f.read(s)[0], 7)
				require.Equal(n, 1, n.control.Calls("cuIpcOpenMemHandle_v2"))
			}
		}
		if n.Rank == 0 { // its pipes end with those of the other process
			for _, f := range all {
				_, err := f.Next(n.Context())
				require.ErrorIs(n, err, pipe.ErrPeerClosed)
			}
			return
		}
		for i, f := range all {
			require.NoError(n, f.Close())
			if i < pipes-1 {
				require.Zero(n, n.control.Calls("cuIpcCloseMemHandle"))
			}
		}
	})
}

// A failed call of the driver fails one message at the sender, and leaves nothing.
func TestDriverFailsOnce(t *testing.T) {
	direct.both(t, nil, func(n *node) {
		s := n.stream(gpu(0))
		if n.Rank == 1 {
			in, got := n.next(), n.alloc(tensorSize, s)
			into := pipe.Allocation{Tensors: []device.Buffer{got}}
			for ; len(in.Descriptor().Metadata) == 0; in = n.next() {
				require.ErrorIs(n, in.Read(n.Context(), into), pipe.ErrAborted)
			}
			require.NoError(n, in.Read(n.Context(), into))
			n.requireFilled(got, 7)
			return
		}
		b := n.filled(tensorSize, s, 7)
		var before leakcheck.Baseline
		for i := range 5 {
			require.NoError(n, n.control.Set("CUSIM_FAIL", "cuEventRecord:2"))
			err := n.Write(n.Context(), message(gpu(0), b))
			var failed *driver.CallError
			require.ErrorAs(n, err, &failed)
			require.Equal(n, "cuEventRecord", failed.Call)
			require.NoError(n, n.control.Set("CUSIM_FAIL", ""))
			if i == 0 {
				before = leakcheck.Begin()
			}
		}
		require.Empty(n, before.Leaks())
		m := message(gpu(0), b)
		m.Metadata = []byte("last")
		require.NoError(n, n.Write(n.Context(), m))
	})
}
