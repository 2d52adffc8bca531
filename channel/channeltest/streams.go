package channeltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// streamCase is a test of the order on streams, with tensors in one place.
type streamCase struct {
	name string
	test func(t *testing.T, s *streamTest)
}

// streamTest is what a streamCase works with.
type streamTest struct {
	place
	b               Backend
	connect, listen *end
	hold            func(device.Buffer) (release func())
}

var streamCases = []streamCase{
	{"SenderWaitsForItsStream", senderWaitsForItsStream},
	{"ReceiverWaitsForItsStream", receiverWaitsForItsStream},
	{"MemoryIsReusedOnTheStream", memoryIsReusedOnTheStream},
	{"StreamsAreReleasedInAnyOrder", streamsAreReleasedInAnyOrder},
	{"OffsetWithinAnAllocation", offsetWithinAnAllocation},
	{"BothWays", bothWaysOnStreams},
	{"AbortWhileHeld", abortWhileHeld},
	{"CloseWhileHeld", closeWhileHeld},
}

// runStreams runs the stream cases in every place with a stream.
func runStreams(t *testing.T, b Backend) {
	if b.Hold == nil {
		return
	}
	for i, p := range streamPlaces(t, b) {
		for _, c := range streamCases {
			t.Run(fmt.Sprintf("Streams/%v/%s", p.device, c.name), func(t *testing.T) {
				b := b.watched(t)
				p := streamPlaces(t, b)[i]
				s := &streamTest{place: p, b: b}
				s.connect, s.listen = open(t, b)
				s.hold = func(m device.Buffer) func() { return b.Hold(m.Stream()) }
				c.test(t, s)
			})
		}
	}
	t.Run("Streams/BetweenDevices", func(t *testing.T) { betweenDevices(t, b.watched(t)) })
}

// streamPlaces lists the places with a stream. Host memory counts as such if
// some kind can make a stream for it.
func streamPlaces(t *testing.T, b Backend) []place {
	t.Helper()
	var out []place
	for _, p := range places(t, b) {
		if p.device == device.CPU() && len(b.Kinds) > 0 {
			p.streams, p.on = b.Kinds[0], b.Kinds[0].Devices()[0]
		}
		if p.device != device.CPU() || p.streams != nil {
			out = append(out, p)
		}
	}
	return out
}

// The sender's stream is busy when Send is called: what goes out is the value
// written by that work. done may come before the work has run, and then the
// bytes must not have been read yet.
func senderWaitsForItsStream(t *testing.T, s *streamTest) {
	early, final := random(1000, 1), random(1000, 2)
	src, dst := s.holding(early), s.alloc(1000)
	release := s.hold(src)
	s.write(src, final)
	send, recv := s.connect.send(src), s.listen.recv(dst)
	linger()
	release()
	wantOK(send, recv)
	s.want(final, dst, "the value written by work on the stream")
}

// The receiver's stream is busy with work that reads the old contents when Recv
// is called: the peer's bytes come behind that.
func receiverWaitsForItsStream(t *testing.T, s *streamTest) {
	before, sent := random(1000, 1), random(1000, 2)
	dst := s.holding(before)
	release := s.hold(dst)
	seen := s.snapshot(dst)
	recv := s.listen.recv(dst)
	send := s.connect.send(s.holding(sent))
	linger()
	release()
	wantOK(recv, send)
	after := s.snapshot(dst)
	require.NoError(t, dst.Stream().Synchronize(t.Context()))
	wantBytes(t, before, seen, "what earlier work on the stream reads")
	wantBytes(t, sent, after, "what later work on the stream reads")
}

// Once done has come, work on the stream may overwrite the source: it is
// ordered behind the channel's reading. The same goes for the target.
func memoryIsReusedOnTheStream(t *testing.T, s *streamTest) {
	src, dst := s.alloc(5000), s.alloc(5000)
	for i := range uint64(20) {
		s.write(src, random(5000, i))
		send, recv := s.connect.send(src), s.listen.recv(dst)
		wantOK(send)
		s.scribble(src)
		wantOK(recv)
		got := s.snapshot(dst)
		s.scribble(dst)
		require.NoError(t, dst.Stream().Synchronize(t.Context()))
		wantBytes(t, random(5000, i), got, "tensor")
	}
}

// Each tensor has a stream of its own on either end, and all are held. They are
// released in the order of the tensors, receivers first, then the other way
// round.
func streamsAreReleasedInAnyOrder(t *testing.T, s *streamTest) {
	for _, youngestFirst := range []bool{false, true} {
		releases, check := tenHeld(t, s)
		if youngestFirst {
			slices.Reverse(releases)
		}
		for _, release := range releases {
			release()
			linger()
		}
		check()
	}
}

// tenHeld begins ten transfers between streams that are held, and returns how
// to let each stream go and how to check the outcome.
func tenHeld(t *testing.T, s *streamTest) (releases []func(), check func()) {
	t.Helper()
	var all []*transfer
	var targets []device.Buffer
	for range 10 {
		targets = append(targets, s.alloc(100))
		releases = append(releases, s.hold(targets[len(targets)-1]))
	}
	for i := range uint64(10) {
		src, dst := s.alloc(100), targets[i]
		releases = append(releases, s.hold(src))
		s.write(src, random(100, i))
		all = append(all, s.connect.send(src), s.listen.recv(dst))
	}
	return releases, func() {
		t.Helper()
		wantOK(all...)
		for i, dst := range targets {
			s.want(random(100, uint64(i)), dst, "tensor")
		}
	}
}

// A tensor may be part of a larger allocation, on either side.
func offsetWithinAnAllocation(t *testing.T, s *streamTest) {
	const size, off, n = 1024, 128, 500
	data := random(size, 1)
	src, dst := s.holding(data), s.alloc(size)
	s.scribble(dst)
	wantOK(s.connect.send(src.Slice(off, n)), s.listen.recv(dst.Slice(2*off, n)))
	got := s.read(dst)
	wantBytes(t, data[off:off+n], got[2*off:2*off+n], "tensor")
	for i, c := range got {
		inside := i >= 2*off && i < 2*off+n
		require.True(t, inside || c == scribbled, "byte %d beside the tensor", i)
	}
}

// Many tensors both ways, from and into streams with work.
func bothWaysOnStreams(t *testing.T, s *streamTest) {
	var all []*transfer
	var targets []device.Buffer
	for i := range uint64(20) {
		for _, e := range [][2]*end{{s.connect, s.listen}, {s.listen, s.connect}} {
			dst := s.alloc(10_000)
			all = append(all, e[0].send(s.holding(random(10_000, i))), e[1].recv(dst))
			targets = append(targets, dst)
		}
	}
	wantOK(all...)
	for i, dst := range targets {
		s.want(random(10_000, uint64(i/2)), dst, "tensor")
	}
}

// Giving up does not wait for work that may never come. A channel that has
// done everything with enqueueing may say nil.
func abortWhileHeld(t *testing.T, s *streamTest) {
	src, dst := s.alloc(1000), s.alloc(1000)
	defer s.hold(src)()
	defer s.hold(dst)()
	send, recv := s.connect.send(src), s.listen.recv(dst)
	s.connect.abort(send.id, errTest)
	if err := send.wait(); err != nil {
		require.ErrorIs(t, err, errTest)
	}
	s.listen.abort(recv.id, errTest)
	_ = recv.wait()
}

func closeWhileHeld(t *testing.T, s *streamTest) {
	src, dst := s.alloc(1000), s.alloc(1000)
	defer s.hold(src)()
	defer s.hold(dst)()
	for _, e := range []*end{s.connect, s.listen} {
		e.send(src)
		e.recv(dst)
	}
	s.connect.close(errTest)
	s.listen.close(errTest)
}

// Every device of one end to every device of the other that its descriptors
// allow.
func betweenDevices(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	f := b.New(t)
	descriptors := f.DeviceDescriptors()
	for _, from := range places(t, b) {
		for _, to := range places(t, b) {
			if !f.CanCommunicate(descriptors[from.device], descriptors[to.device]) {
				continue
			}
			for i, e := range [][2]*end{{connect, listen}, {listen, connect}} {
				data := random(3000, uint64(i))
				dst := to.alloc(len(data))
				wantOK(e[0].send(from.holding(data)), e[1].recv(dst))
				to.want(data, dst, fmt.Sprint(from.device, " to ", to.device))
			}
		}
	}
}
