package channeltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// runParity runs the cases that TensorPipe has for each of its channels.
func runParity(t *testing.T, b Backend) {
	for _, c := range []testCase{
		{"CallbacksAreDeferred", callbacksAreDeferred}, // first, because the others rely on it
		{"DeviceDescriptors", deviceDescriptors},
		{"ClientToServer", clientToServer},
		{"ServerToClient", serverToClient},
		{"SendMultipleTensors", sendMultipleTensors},
		{"SendTensorsBothWays", sendTensorsBothWays},
		{"EmptyTensor", emptyTensor},
		{"EmptyAndNonEmptyTensors", emptyAndNonEmptyTensors},
		{"NullPointer", nullPointer},
	} {
		parity.Case(t, "tensorpipe/channel."+c.name+"@"+b.Name, func(t *testing.T) { c.test(t, b.withTimeout(t)) })
	}
}

func deviceDescriptors(t *testing.T, b Backend) {
	one, two := b.New(t).DeviceDescriptors(), b.New(t).DeviceDescriptors()
	require.NotEmpty(t, one)
	for d, text := range one {
		require.NotEmpty(t, text, "descriptor of %v", d)
	}
	require.Equal(t, one, two)
}

// In TensorPipe's tests the listening end sends in this case.
func clientToServer(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, listen, connect, 256)
}

func serverToClient(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, connect, listen, 256)
}

// exchange sends tensors of these sizes concurrently and checks what arrives.
func exchange(t *testing.T, b Backend, from, to *end, sizes ...int) {
	t.Helper()
	begin(t, b, from, to, sizes...)()
}

// begin begins the transfers of exchange, and returns a function that waits for them and checks
// what arrives.
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

// The tensors are empty slices of memory that is not empty.
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

// An empty tensor in host memory may have no address.
func nullPointer(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	nothing := device.Bytes(nil)
	if p := defaultAllocator(t, b); p.device != device.CPU() {
		nothing = p.alloc(0).WithStream(nil)
	}
	wantOK(listen.send(nothing), connect.recv(nothing))
	wantOK(connect.send(nothing), listen.recv(nothing))
}

// The ends hold a mutex during each call that done locks too. The calls run on other goroutines, so
// that a channel that calls done within them is reported, and does not deadlock the test.
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
