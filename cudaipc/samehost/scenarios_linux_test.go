package samehost_test

import (
	"fmt"
	"runtime"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// scenario is what two processes do with their pipe. In the end each overwrites the memory that it has
// sent or received, so that the last waits count.
type scenario struct {
	name  string
	route route
	run   func(n *node)

	// redundant has calls that give right bytes when they are dropped, and the reasons.
	redundant map[string]string
}

// tensorSize is small, because it does not matter to the order.
const tensorSize = 4 << 10

var scenarios = []scenario{
	{name: "one tensor", route: direct, run: oneWay(1)},
	{name: "several tensors both ways", route: direct, run: bothWays(3)},
	{name: "reuse of the source", route: direct, run: oneWay(4)},
	{name: "reuse of the target", route: direct, run: reuseTarget},
	{name: "across devices", route: direct, run: acrossDevices},
	{name: "reuse by the allocator", route: direct, run: reuseByAllocator},
	{name: "staged", route: staged, run: moreThanSlots, redundant: map[string]string{
		"worker1 record s9 1": lastUse, "worker1 record s10 1": lastUse, "worker1 record s11 1": lastUse, "worker1 record s12 1": lastUse,
	}},
	{name: "staged, reuse by the allocator", route: staged, run: reuseByAllocator, redundant: map[string]string{
		"worker1 record s2 1": lastUse,
	}},
}

const lastUse = "the slot of the outbox is not used again"

// check requires nothing: it notes whether a byte of b is not v.
func (n *node) check(b device.Buffer, v byte) {
	if !n.isFilled(b, v) {
		n.wrong = append(n.wrong, fmt.Sprintf("not %d", v))
	}
}

// oneWay sends the same memory several times, with other bytes each time.
func oneWay(times int) func(n *node) {
	return func(n *node) {
		s := n.stream(gpu(0))
		if n.Rank == 0 {
			b := n.alloc(tensorSize, s)
			for i := range times {
				n.fill(b, byte(1+i))
				n.write(gpu(0), b)
			}
			n.fill(b, 0xee)
			return
		}
		var got []device.Buffer
		for range times {
			got = append(got, n.read(s)...)
		}
		for i, b := range got {
			n.check(b, byte(1+i))
		}
	}
}

// bothWays sends several tensors in a message each way. Each has a stream of its own, because a wait of a
// stream is one for all its later work.
func bothWays(count int) func(n *node) {
	return func(n *node) {
		var sent, got []device.Buffer
		for i := range count {
			sent = append(sent, n.filled(tensorSize, n.stream(gpu(0)), byte(10*n.Rank+i+1)))
			got = append(got, n.alloc(tensorSize, n.stream(gpu(0))))
		}
		op := n.WriteAsync(n.Context(), message(gpu(0), sent...))
		n.readInto(got...)
		require.NoError(n, op.Wait(n.Context()))
		for _, b := range sent {
			n.fill(b, 0xee)
		}
		for i, b := range got {
			n.check(b, byte(10*(1-n.Rank)+i+1))
		}
	}
}

// moreThanSlots sends more tensors than an outbox has slots, each on a stream of its own.
func moreThanSlots(n *node) {
	const count = 12
	var all []device.Buffer
	for i := range count {
		b := n.alloc(tensorSize, n.stream(gpu(0)))
		if n.Rank == 0 {
			n.fill(b, byte(1+i))
		}
		all = append(all, b)
	}
	if n.Rank == 0 {
		n.write(gpu(0), all...)
		for _, b := range all {
			n.fill(b, 0xee)
		}
		return
	}
	n.readInto(all...)
	for i, b := range all {
		n.check(b, byte(1+i))
	}
}

// reuseTarget receives twice into the same memory, which a copy on the same stream reads in between.
func reuseTarget(n *node) {
	if n.Rank == 0 {
		a := n.filled(tensorSize, n.stream(gpu(0)), 1)
		b := n.filled(tensorSize, n.stream(gpu(0)), 2)
		for v := range byte(7) { // so that b is written long after the receiver could copy it
			n.fill(b, 3+v)
		}
		n.write(gpu(0), a)
		n.write(gpu(0), b)
		n.fill(a, 0xee)
		n.fill(b, 0xee)
		return
	}
	s := n.stream(gpu(0))
	into, first := n.alloc(tensorSize, s), n.alloc(tensorSize, s)
	n.readInto(into)
	n.copy(first, into)
	n.readInto(into)
	n.check(first, 1)
	n.check(into, 9)
}

// acrossDevices sends a tensor from GPU 0 to GPU 1, changes it there, and sends it back to GPU 0.
func acrossDevices(n *node) {
	if n.Rank == 0 {
		b := n.filled(tensorSize, n.stream(gpu(0)), 1)
		n.write(gpu(1), b)
		n.fill(b, 0xee)
		n.check(n.read(n.stream(gpu(0)))[0], 2)
		return
	}
	s := n.stream(gpu(1))
	b := n.read(s)[0]
	got := n.alloc(tensorSize, s)
	n.copy(got, b)
	n.fill(b, 2)
	n.write(gpu(0), b)
	n.fill(b, 0xee)
	n.check(got, 1)
}

// reuseByAllocator frees memory that was sent and received on another stream than that on which it was
// allocated. The allocator uses it again.
func reuseByAllocator(n *node) {
	own, other := n.stream(gpu(0)), n.stream(gpu(0))
	b := n.alloc(tensorSize, own).WithStream(other)
	got := n.alloc(tensorSize, other)
	at := ptr(b)
	if n.Rank == 0 {
		n.fill(b, 1)
		n.write(gpu(0), b)
	} else {
		n.readInto(b)
		n.copy(got, b)
	}
	again := n.reuse(own, at)
	if n.Rank == 1 {
		n.check(got, 1)
	}
	n.check(again, 0xee)
	runtime.KeepAlive(other)
}

// reuse waits until the only buffer that became unreachable, which began at at, is free for s, and fills
// it with other bytes.
func (n *node) reuse(s *cudaipc.Stream, at driver.Ptr) (again device.Buffer) {
	var kept []device.Buffer
	found := func() bool {
		runtime.GC()
		again = n.alloc(tensorSize, s)
		kept = append(kept, again)
		return ptr(again) == at
	}
	require.Eventually(n, found, testwait.Limit, time.Millisecond)
	n.fill(again, 0xee)
	runtime.KeepAlive(kept)
	return again
}

// copy enqueues a copy.
func (n *node) copy(dst, src device.Buffer) { require.NoError(n, n.kind.Copy(dst, src)) }
