package channeltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// runParity runs, as subtests of t, the cases with which TensorPipe tests each of its channels,
// under names that identify TensorPipe's cases.
func runParity(t *testing.T, b Backend) {
	for _, c := range parityCases {
		parity.Case(t, "tensorpipe/channel."+c.name+"@"+b.Name, func(t *testing.T) { c.check(t, b) })
	}
}

// parityCases are TensorPipe's tests of a channel.
var parityCases = []testCase{
	{"CallbacksAreDeferred", "Channel: Each transfer calls done exactly once, whatever its outcome, and never from within Send, Recv or Abort, so that the caller may hold a lock that done takes.", callbacksAreDeferred}, // first, because the others rely on it
	{"DeviceDescriptors", "Factory.DeviceDescriptors: It has at least one device and no empty text, and is the same at each call; the caller may change it.", deviceDescriptors},
	{"ClientToServer", "Channel: A Send of one end matches the Recv of the other end that has the same id.", clientToServer},
	{"ServerToClient", "Channel: A Send of one end matches the Recv of the other end that has the same id.", serverToClient},
	{"SendMultipleTensors", "Channel: A Send of one end matches the Recv of the other end that has the same id.", sendMultipleTensors},
	{"SendTensorsBothWays", "Channel: A Send of one end matches the Recv of the other end that has the same id.", sendTensorsBothWays},
	{"EmptyTensor", "Channel: The pipe handles empty tensors itself, but Send and Recv accept them: they send nothing, and complete without error while the channel has not ended.", emptyTensor},
	{"EmptyAndNonEmptyTensors", "Channel: The pipe handles empty tensors itself, but Send and Recv accept them: they send nothing, and complete without error while the channel has not ended.", emptyAndNonEmptyTensors},
	{"NullPointer", "Channel: The pipe handles empty tensors itself, but Send and Recv accept them: they send nothing, and complete without error while the channel has not ended.", nullPointer},
}

func deviceDescriptors(t *testing.T, b Backend) {
	f := b.New(t)
	one, two := f.DeviceDescriptors(), f.DeviceDescriptors()
	require.NotEmpty(t, one, "the channel serves no device")
	for d, text := range one {
		require.NotEmpty(t, text, "the descriptor of %v is empty", d)
	}
	require.Equal(t, one, two)
}

// clientToServer checks that one tensor arrives that the listening end sends. The name and the
// direction are those of TensorPipe's test.
func clientToServer(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, listen, connect, 256)
}

func serverToClient(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, connect, listen, 256)
}

// exchange sends one tensor of each of sizes from from to to, all concurrently, waits for them, and
// fails the test unless all arrive unchanged.
func exchange(t *testing.T, b Backend, from, to *end, sizes ...int) {
	t.Helper()
	begin(t, b, from, to, sizes...)()
}

// begin begins to send one tensor of each of sizes from from to to. It returns a function that
// waits for these transfers and fails the test unless all tensors have arrived unchanged.
func begin(t *testing.T, b Backend, from, to *end, sizes ...int) (check func()) {
	t.Helper()
	p := defaultAllocator(t, b)
	var all []*transfer
	var targets []device.Buffer
	for i, n := range sizes {
		all = append(all, from.send(p.allocWith(random(n, uint64(i)))))
	}
	for _, n := range sizes {
		targets = append(targets, p.alloc(n))
		all = append(all, to.recv(targets[len(targets)-1]))
	}
	return func() {
		t.Helper()
		wantOK(all...)
		for i, n := range sizes {
			p.want(random(n, uint64(i)), targets[i], "tensor")
		}
	}
}

func repeat(n, size int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = size
	}
	return sizes
}

func sendMultipleTensors(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, listen, connect, repeat(100, 256<<10)...)
}

func sendTensorsBothWays(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	checkForward := begin(t, b, connect, listen, 256)
	checkReverse := begin(t, b, listen, connect, 257)
	checkForward()
	checkReverse()
}

// emptyTensor checks, in both directions, that an empty slice of memory that is not empty can be
// sent and received, and that the memory does not change.
func emptyTensor(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := defaultAllocator(t, b)
	for _, ends := range [][2]*end{{listen, connect}, {connect, listen}} {
		dst := p.allocWith(random(1, 1))
		wantOK(ends[0].send(p.allocWith(random(1, 2)).Slice(0, 0)), ends[1].recv(dst.Slice(0, 0)))
		p.want(random(1, 1), dst, "memory around an empty tensor")
	}
}

func emptyAndNonEmptyTensors(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, listen, connect, 1, 0, 1)
	exchange(t, b, connect, listen, 1, 0, 1)
}

// nullPointer checks, in both directions, that an empty tensor without an address can be sent and
// received: device.Bytes(nil) in host memory, and an allocation of 0 bytes on other devices.
func nullPointer(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	nothing := device.Bytes(nil)
	if p := defaultAllocator(t, b); p.device != device.CPU() {
		nothing = p.alloc(0).WithStream(nil)
	}
	wantOK(listen.send(nothing), connect.recv(nothing))
	wantOK(connect.send(nothing), listen.recv(nothing))
}

// callbacksAreDeferred checks that Send, Recv and Abort do not call done before they return. The
// ends hold a mutex during each call that done locks too, so that a channel that calls done within
// them deadlocks; the calls run on other goroutines, so that this fails the test instead of
// blocking it.
func callbacksAreDeferred(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := defaultAllocator(t, b)
	for _, n := range []int{0, 256} {
		var send, recv *transfer
		src, dst := p.allocWith(random(n, 1)), p.alloc(n)
		testwait.Finish(t, testwait.Start(func() bool { send = listen.send(src); return true }))
		testwait.Finish(t, testwait.Start(func() bool { recv = connect.recv(dst); return true }))
		wantOK(send, recv)
		p.want(random(n, 1), dst, "tensor")
	}
	given := listen.recv(p.alloc(100))
	testwait.Finish(t, testwait.Start(func() bool { listen.abort(given.id, errTest); return true }))
	require.ErrorIs(t, given.wait(), errTest)
}
