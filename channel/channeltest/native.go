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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
)

// nativeCases are about ids in any order, and about aborts that disturb nobody.
var nativeCases = []testCase{
	{"AnyOrder", anyOrder},
	{"RecvLongBeforeSend", func(t *testing.T, b Backend) { oneEarly(t, b, false) }},
	{"SendLongBeforeRecv", func(t *testing.T, b Backend) { oneEarly(t, b, true) }},
	{"AbortAtEveryStage", abortAtEveryStage},
	{"AbortsCross", abortsCross},
}

// Ids with gaps, in one order at one end and in another at the other, both ways
// at once.
func anyOrder(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := usual(t, b)
	ids := []uint64{1 << 62, 3, 1<<63 - 1, 0, 1 << 16, 7, 1<<16 + 1}
	orders := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		var checks []func()
		for _, e := range []*end{connect, listen} {
			orders.Shuffle(len(ids), func(i, k int) { ids[i], ids[k] = ids[k], ids[i] })
			checks = append(checks, scattered(p, e, ids, orders.Perm(len(ids))))
		}
		for _, check := range checks {
			check()
		}
		for i := range ids {
			ids[i] = (ids[i] + 100) % (1 << 63)
		}
	}
}

// scattered begins sends of from in the order of ids, and the receives in
// another.
func scattered(p place, from *end, ids []uint64, order []int) (check func()) {
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
		all = append(all, from.sendAs(id, p.holding(random(20_000+i, id))))
	}
	return func() {
		p.t.Helper()
		wantOK(all...)
		for i, id := range ids {
			p.want(random(20_000+i, id), targets[i], "tensor")
		}
	}
}

// One end begins a transfer of which the other knows nothing for a long time.
func oneEarly(t *testing.T, b Backend, send bool) {
	connect, listen := open(t, b)
	p := usual(t, b)
	src, dst := p.holding(random(5000, 1)), p.alloc(5000)
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

// While other tensors come and go, one is aborted by either end, before the
// other has begun it or after, sooner or later. Nobody else notices.
func abortAtEveryStage(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	a := newAbortion(usual(t, b), connect, listen)
	for _, a.wait = range race.Pick([]int{0, 10, 100, 1000}, []int{0, 100}) {
		for _, a.bySender = range []bool{true, false} {
			for _, a.alone = range []bool{true, false} {
				there := begin(t, b, connect, listen, 100_000, 10, 2<<20)
				back := begin(t, b, listen, connect, 100_000, 10)
				a.run()
				there()
				back()
				a.id++
			}
		}
	}
	connect.wantUnbroken()
	listen.wantUnbroken()
}

// abortion is a transfer that is aborted.
type abortion struct {
	place
	from, to *end
	src, dst device.Buffer
	id       uint64
	wait     int  // turns of other goroutines before the abort
	bySender bool // or else by the receiver
	alone    bool // the other end begins only afterwards
}

func newAbortion(p place, from, to *end) abortion {
	size := race.Pick(4<<20, 2<<20)
	return abortion{place: p, from: from, to: to, src: p.alloc(size), dst: p.alloc(size), id: 1 << 40}
}

// run checks that both ends are told, and the memory is left alone from then on.
func (a *abortion) run() {
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
	a.scribble(a.src)
	a.scribble(a.dst)
	linger()
	wantScribble(a.t, a.place, a.dst)
}

// wantAborted waits for a transfer that was aborted, perhaps too late.
func (a *abortion) wantAborted(tr *transfer, data []byte, dst device.Buffer) {
	a.t.Helper()
	err := tr.wait()
	if err == nil && tr.what == "recv" {
		a.want(data, dst, "a tensor that went out in spite of being aborted")
	}
	if err != nil {
		require.True(a.t, errors.Is(err, errTest) || errors.Is(err, channel.ErrAborted), "%v: %v", tr, err)
	}
}

// Both ends abort the same transfer at the same time.
func abortsCross(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	a := newAbortion(usual(t, b), connect, listen)
	src, dst := a.src.Slice(0, 1<<20), a.dst.Slice(0, 1<<20)
	const rounds = 40
	for i := range uint64(rounds) {
		if !race.Takes(int(i), rounds, 3) {
			continue
		}
		data := random(src.Len(), i)
		a.write(src, data)
		send, recv := connect.send(src), listen.recv(dst)
		for range i * i {
			runtime.Gosched()
		}
		one := patience.Start(func() bool { connect.abort(send.id, errTest); return true })
		two := patience.Start(func() bool { listen.abort(recv.id, errTest); return true })
		patience.Finish(t, one)
		patience.Finish(t, two)
		a.wantAborted(send, data, dst)
		a.wantAborted(recv, data, dst)
		exchange(t, b, listen, connect, 10)
	}
	exchange(t, b, connect, listen, 100_000)
	connect.wantUnbroken()
	listen.wantUnbroken()
}
