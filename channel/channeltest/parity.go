package channeltest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// runParity runs the cases that TensorPipe has for each of its channels.
func runParity(t *testing.T, b Backend) {
	for _, c := range []testCase{
		{"CallbacksAreDeferred", callbacksAreDeferred}, // first: all others rely on it
		{"DeviceDescriptors", deviceDescriptors},
		{"ClientToServer", clientToServer},
		{"ServerToClient", serverToClient},
		{"SendMultipleTensors", sendMultipleTensors},
		{"SendTensorsBothWays", sendTensorsBothWays},
		{"EmptyTensor", emptyTensor},
		{"EmptyAndNonEmptyTensors", emptyAndNonEmptyTensors},
		{"NullPointer", nullPointer},
	} {
		parity.Case(t, "tensorpipe/channel."+c.name+"@"+b.Name, func(t *testing.T) { c.test(t, b.watched(t)) })
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

// TensorPipe's cases let the listening end send in the first case and the
// connecting end in the second.
func clientToServer(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, listen, connect, 256)
}

func serverToClient(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, connect, listen, 256)
}

// exchange sends tensors of these sizes, all at once, and checks what arrives.
func exchange(t *testing.T, b Backend, from, to *end, sizes ...int) {
	t.Helper()
	begin(t, b, from, to, sizes...)()
}

// begin is exchange up to where it would wait, which is left to the function
// it returns.
func begin(t *testing.T, b Backend, from, to *end, sizes ...int) (check func()) {
	t.Helper()
	p := usual(t, b)
	var all []*transfer
	var targets []device.Buffer
	for i, n := range sizes {
		all = append(all, from.send(p.holding(random(n, uint64(i)))))
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
	there := begin(t, b, connect, listen, 256)
	back := begin(t, b, listen, connect, 257)
	there()
	back()
}

// The tensors are empty parts of memory that is not.
func emptyTensor(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := usual(t, b)
	for _, ends := range [][2]*end{{listen, connect}, {connect, listen}} {
		dst := p.holding(random(1, 1))
		wantOK(ends[0].send(p.holding(random(1, 2)).Slice(0, 0)), ends[1].recv(dst.Slice(0, 0)))
		p.want(random(1, 1), dst, "memory around an empty tensor")
	}
}

func emptyAndNonEmptyTensors(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	exchange(t, b, listen, connect, 1, 0, 1)
	exchange(t, b, connect, listen, 1, 0, 1)
}

// Where the channel serves host memory, an empty tensor may have no address.
func nullPointer(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	nothing := device.Bytes(nil)
	if p := usual(t, b); p.device != device.CPU() {
		nothing = p.alloc(0).WithStream(nil)
	}
	wantOK(listen.send(nothing), connect.recv(nothing))
	wantOK(connect.send(nothing), listen.recv(nothing))
}

// The ends hold a lock in each call that done takes too; here they do so on the
// side, so that a channel that calls done too early is reported, not stuck.
func callbacksAreDeferred(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := usual(t, b)
	for _, n := range []int{0, 256} {
		var send, recv *transfer
		src, dst := p.holding(random(n, 1)), p.alloc(n)
		patience.Finish(t, patience.Start(func() bool { send = listen.send(src); return true }))
		patience.Finish(t, patience.Start(func() bool { recv = connect.recv(dst); return true }))
		wantOK(send, recv)
		p.want(random(n, 1), dst, "tensor")
	}
	given := listen.recv(p.alloc(100))
	patience.Finish(t, patience.Start(func() bool { listen.abort(given.id, errTest); return true }))
	require.ErrorIs(t, given.wait(), errTest)
}
