package channeltest

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// nativeCases test ids in any order, and aborts without an effect on other transfers.
var nativeCases = []testCase{
	{"AnyOrder", "Channel: In the native dialect an id is unique within the channel, including both directions, and ids come in any order and with gaps; Send and Recv may come in either order, and a Recv may come long before or after another with a lower id.", anyOrder},
	{"RecvLongBeforeSend", "Channel: In the native dialect an id is unique within the channel, including both directions, and ids come in any order and with gaps; Send and Recv may come in either order, and a Recv may come long before or after another with a lower id.", func(t *testing.T, b Backend) { beginLongBefore(t, b, false) }},
	{"SendLongBeforeRecv", "Channel: In the native dialect an id is unique within the channel, including both directions, and ids come in any order and with gaps; Send and Recv may come in either order, and a Recv may come long before or after another with a lower id.", func(t *testing.T, b Backend) { beginLongBefore(t, b, true) }},
	{"AbortAtEveryStage", "Channel.Abort: In the native dialect all other transfers continue.", abortAtEveryStage},
	{"ConcurrentAborts", "Channel.Abort: In the native dialect all other transfers continue.", concurrentAborts},
}

// anyOrder moves tensors in both directions concurrently, with ids that have gaps and that the two
// ends use in different orders. It checks that all arrive.
func anyOrder(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := defaultAllocator(t, b)
	ids := []uint64{1 << 62, 3, 1<<63 - 1, 0, 1 << 16, 7, 1<<16 + 1}
	orders := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		var checks []func()
		for _, e := range []*end{connect, listen} {
			orders.Shuffle(len(ids), func(i, k int) { ids[i], ids[k] = ids[k], ids[i] })
			checks = append(checks, beginShuffled(p, e, ids, orders.Perm(len(ids))))
		}
		for _, check := range checks {
			check()
		}
		for i := range ids {
			ids[i] = (ids[i] + 100) % (1 << 63)
		}
	}
}

// beginShuffled begins Recvs at from.peer, in the order of the indexes in order, and then Sends at
// from in the order of ids. It returns a function that waits for them and fails the test unless all
// tensors have arrived. It does not retain or change ids.
func beginShuffled(p allocator, from *end, ids []uint64, order []int) (check func()) {
	var all []*transfer
	targets := make([]device.Buffer, len(ids))
	ids = slices.Clone(ids)
	for i := range ids {
		ids[i] |= firstID(from.role)
	}
	for _, i := range order {
		targets[i] = p.alloc(20_000 + i)
		all = append(all, from.peer.recvAs(ids[i], targets[i]))
	}
	for i, id := range ids {
		all = append(all, from.sendAs(id, p.allocWith(random(20_000+i, id))))
	}
	return func() {
		p.t.Helper()
		wantOK(all...)
		for i, id := range ids {
			p.want(random(20_000+i, id), targets[i], "tensor")
		}
	}
}

// beginLongBefore begins the Send of a tensor if send is true, and otherwise its Recv, then moves
// other tensors, and only then begins the other half. It checks that all tensors arrive.
func beginLongBefore(t *testing.T, b Backend, send bool) {
	connect, listen := open(t, b)
	p := defaultAllocator(t, b)
	src, dst := p.allocWith(random(5000, 1)), p.alloc(5000)
	const id = 1 << 40
	var early, late *transfer
	if send {
		early = connect.sendAs(id, src)
	} else {
		early = listen.recvAs(id, dst)
	}
	for range 10 {
		exchange(t, b, connect, listen, 10_000, 10)
		exchange(t, b, listen, connect, 10)
	}
	if send {
		late = listen.recvAs(id, dst)
	} else {
		require.False(t, early.isDone())
		late = connect.sendAs(id, src)
	}
	wantOK(early, late)
	p.want(random(5000, 1), dst, "tensor")
}

// abortAtEveryStage aborts a transfer at one end, after different delays, before or after the other
// end has begun it, while other transfers are in progress. It checks that these succeed and that
// both ends stay unbroken.
func abortAtEveryStage(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	a := newAbortTest(defaultAllocator(t, b), connect, listen)
	for _, a.wait = range race.Pick([]int{0, 10, 100, 1000}, []int{0, 100}) {
		for _, a.bySender = range []bool{true, false} {
			for _, a.alone = range []bool{true, false} {
				checkForward := begin(t, b, connect, listen, 100_000, 10, 2<<20)
				checkReverse := begin(t, b, listen, connect, 100_000, 10)
				a.run()
				checkForward()
				checkReverse()
				a.id++
			}
		}
	}
	connect.wantUnbroken()
	listen.wantUnbroken()
}

// abortTest is a transfer that is aborted.
type abortTest struct {
	allocator
	from, to *end
	src, dst device.Buffer
	id       uint64
	wait     int  // calls of Gosched before the abort
	bySender bool // aborted by the sender, else by the receiver
	alone    bool // the other end begins after the abort
}

func newAbortTest(p allocator, from, to *end) abortTest {
	size := race.Pick(4<<20, 2<<20)
	return abortTest{allocator: p, from: from, to: to, src: p.alloc(size), dst: p.alloc(size), id: 1 << 40}
}

// run begins the transfer and aborts it after a.wait calls of runtime.Gosched: at the sender if
// a.bySender is true, else at the receiver, and before the other end has begun it if a.alone is
// true. It checks that the Send and the Recv end as wantAborted requires, and that the receiver's
// memory does not change after that.
func (a *abortTest) run() {
	a.t.Helper()
	data := random(a.src.Len(), a.id)
	a.write(a.src, data)
	send := func() *transfer { return a.from.sendAs(a.id, a.src) }
	recv := func() *transfer { return a.to.recvAs(a.id, a.dst) }
	by, first, second := a.from, send, recv
	if !a.bySender {
		by, first, second = a.to, recv, send
	}

	all := []*transfer{first()}
	if !a.alone {
		all = append(all, second())
	}
	for range a.wait {
		runtime.Gosched()
	}
	by.abort(a.id, errTest)
	if a.alone {
		all = append(all, second())
	}
	for _, tr := range all {
		a.wantAborted(tr, data, a.dst)
	}
	a.poison(a.src)
	a.poison(a.dst)
	yield()
	wantPoison(a.t, a.allocator, a.dst)
}

// wantAborted waits for tr, an aborted transfer of data. If tr has failed, the test fails unless
// the error matches errTest or channel.ErrAborted. If tr is a Recv that has succeeded, the test
// fails unless dst contains data.
func (a *abortTest) wantAborted(tr *transfer, data []byte, dst device.Buffer) {
	a.t.Helper()
	err := tr.wait()
	if err == nil && tr.what == "recv" {
		a.want(data, dst, "a tensor that was sent before it was aborted")
	}
	if err != nil {
		require.True(a.t, errors.Is(err, errTest) || errors.Is(err, channel.ErrAborted), "%v: %v", tr, err)
	}
}

// concurrentAborts aborts the same transfer at both ends concurrently, after different delays. It
// checks that the Send and the Recv end as wantAborted requires, and that the channel still moves
// tensors.
func concurrentAborts(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	a := newAbortTest(defaultAllocator(t, b), connect, listen)
	src, dst := a.src.Slice(0, 1<<20), a.dst.Slice(0, 1<<20)
	const rounds = 40
	for i := range uint64(rounds) {
		if !race.Includes(int(i), rounds, 3) {
			continue
		}
		data := random(src.Len(), i)
		a.write(src, data)
		send, recv := connect.send(src), listen.recv(dst)
		for range i * i {
			runtime.Gosched()
		}
		one := testwait.Start(func() bool { connect.abort(send.id, errTest); return true })
		two := testwait.Start(func() bool { listen.abort(recv.id, errTest); return true })
		testwait.Finish(t, one)
		testwait.Finish(t, two)
		a.wantAborted(send, data, dst)
		a.wantAborted(recv, data, dst)
		exchange(t, b, listen, connect, 10)
	}
	exchange(t, b, connect, listen, 100_000)
	connect.wantUnbroken()
	listen.wantUnbroken()
}
