package channeltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// streamCase is a test of stream order with the memory of one device.
type streamCase struct {
	name string
	rule string // see testCase
	test func(t *testing.T, s *streamTest)
}

// streamTest is the environment of a streamCase.
type streamTest struct {
	allocator
	b               Backend
	connect, listen *end
	hold            func(device.Buffer) (release func())
}

var streamCases = []streamCase{
	{"SenderWaitsForItsStream", "Channel.Send: The channel reads the memory after the work that src's stream holds at the time of the call has completed.", senderWaitsForItsStream},
	{"ReceiverWaitsForItsStream", "Channel.Recv: The channel writes to the memory after the work that dst's stream holds at the time of the call has completed. Work enqueued on dst's stream after done sees the received bytes.", receiverWaitsForItsStream},
	{"MemoryIsReusedOnTheStream", "Channel: Until done is called the memory belongs to the channel. After that host memory may be reused; on a device with streams the work is enqueued on the buffer's stream, and whatever reuses the memory must be ordered after it on that stream.", memoryIsReusedOnTheStream},
	{"StreamsAreReleasedInAnyOrder", "Channel: A Send of one end matches the Recv of the other end that has the same id.", streamsAreReleasedInAnyOrder},
	{"OffsetWithinAnAllocation", "Channel: A Send of one end matches the Recv of the other end that has the same id.", offsetWithinAnAllocation},
	{"BothWays", "Channel: A Send of one end matches the Recv of the other end that has the same id.", bothWaysOnStreams},
	{"AbortWhileHeld", "Channel.Abort: done is called with cause as soon as the memory is not in use any more, without waiting for the peer.", abortWhileHeld},
	{"CloseWhileHeld", "Channel.Close: Close ends all transfers with cause, and closes the link. It returns the error of closing the link, after every done has been called and all goroutines of the channel have ended.", closeWhileHeld},
}

// runStreams runs the streamCases as subtests of t, for each device of b whose memory has a stream,
// and then the test between devices. If b.Hold is nil it does nothing.
func runStreams(t *testing.T, b Backend) {
	if b.Hold == nil {
		return
	}
	for i, p := range streamAllocators(t, b) {
		for _, c := range streamCases {
			t.Run(fmt.Sprintf("Streams/%v/%s", p.device, c.name), func(t *testing.T) {
				printRule(t, c.rule)
				b := b.withTimeout(t)
				p := streamAllocators(t, b)[i]
				s := &streamTest{allocator: p, b: b}
				s.connect, s.listen = open(t, b)
				s.hold = func(m device.Buffer) func() { return b.Hold(m.Stream()) }
				c.test(t, s)
			})
		}
	}
	t.Run("Streams/BetweenDevices", func(t *testing.T) { betweenDevices(t, b.withTimeout(t)) })
}

// streamAllocators returns the allocators of the devices that the channel serves whose memory has a
// stream. These are all devices but cpu:0, and cpu:0 with a stream of the first of b.Kinds, if
// there is one.
func streamAllocators(t *testing.T, b Backend) []allocator {
	t.Helper()
	var out []allocator
	for _, p := range allocators(t, b) {
		if p.device == device.CPU() && len(b.Kinds) > 0 {
			p.streams, p.streamDevice = b.Kinds[0], b.Kinds[0].Devices()[0]
		}
		if p.device != device.CPU() || p.streams != nil {
			out = append(out, p)
		}
	}
	return out
}

// senderWaitsForItsStream calls Send while the stream of the memory is held and work that changes
// the memory is enqueued on it. It checks that the changed value arrives.
func senderWaitsForItsStream(t *testing.T, s *streamTest) {
	early, final := random(1000, 1), random(1000, 2)
	src, dst := s.allocWith(early), s.alloc(1000)
	release := s.hold(src)
	s.write(src, final)
	send, recv := s.connect.send(src), s.listen.recv(dst)
	yield()
	release()
	wantOK(send, recv)
	s.want(final, dst, "the value written by work on the stream")
}

// receiverWaitsForItsStream calls Recv while the stream of the memory is held and work that reads
// the memory is enqueued on it. It checks that this work reads the old contents, and work enqueued
// after done the received ones.
func receiverWaitsForItsStream(t *testing.T, s *streamTest) {
	before, sent := random(1000, 1), random(1000, 2)
	dst := s.allocWith(before)
	s.want(before, dst, "early contents")
	release := s.hold(dst)
	seen := s.snapshot(dst)
	recv := s.listen.recv(dst)
	send := s.connect.send(s.allocWith(sent))
	yield()
	release()
	wantOK(recv, send)
	after := s.snapshot(dst)
	require.NoError(t, dst.Stream().Synchronize(t.Context()))
	wantBytes(t, before, seen, "what earlier work on the stream reads")
	wantBytes(t, sent, after, "what later work on the stream reads")
}

// memoryIsReusedOnTheStream overwrites the memory on its stream directly after done, at both ends.
// It checks that the old contents arrive and that the received ones can be read before they are
// overwritten.
func memoryIsReusedOnTheStream(t *testing.T, s *streamTest) {
	src, dst := s.alloc(5000), s.alloc(5000)
	for i := range uint64(20) {
		s.write(src, random(5000, i))
		send, recv := s.connect.send(src), s.listen.recv(dst)
		wantOK(send)
		s.poison(src)
		wantOK(recv)
		got := s.snapshot(dst)
		s.poison(dst)
		require.NoError(t, dst.Stream().Synchronize(t.Context()))
		wantBytes(t, random(5000, i), got, "tensor")
	}
}

// streamsAreReleasedInAnyOrder begins ten transfers whose streams are all held, at both ends. It
// releases the streams one by one, receivers first and in the order of the tensors, and a second
// time in reverse order. It checks that all tensors arrive.
func streamsAreReleasedInAnyOrder(t *testing.T, s *streamTest) {
	for _, reversed := range []bool{false, true} {
		releases, check := beginTenHeld(t, s)
		if reversed {
			slices.Reverse(releases)
		}
		for _, release := range releases {
			release()
			yield()
		}
		check()
	}
}

// beginTenHeld begins ten transfers whose streams are all held at both ends. It returns the
// functions that release the streams, and a function that waits for the transfers and fails the
// test unless the tensors have arrived.
func beginTenHeld(t *testing.T, s *streamTest) (releases []func(), check func()) {
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

// offsetWithinAnAllocation sends a slice of a larger allocation into a slice at another offset. It
// checks that the bytes arrive and that those around the target do not change.
func offsetWithinAnAllocation(t *testing.T, s *streamTest) {
	const size, off, n = 1024, 128, 500
	data := random(size, 1)
	src, dst := s.allocWith(data), s.alloc(size)
	s.poison(dst)
	wantOK(s.connect.send(src.Slice(off, n)), s.listen.recv(dst.Slice(2*off, n)))
	got := s.read(dst)
	wantBytes(t, data[off:off+n], got[2*off:2*off+n], "tensor")
	for i, c := range got {
		inside := i >= 2*off && i < 2*off+n
		require.True(t, inside || c == poisonByte, "wrong bytes: %d outside of the tensor", i)
	}
}

// bothWaysOnStreams sends twenty tensors in each direction between memory with pending work on its
// streams, and checks that all arrive.
func bothWaysOnStreams(t *testing.T, s *streamTest) {
	var all []*transfer
	var targets []device.Buffer
	for i := range uint64(20) {
		for _, e := range [][2]*end{{s.connect, s.listen}, {s.listen, s.connect}} {
			dst := s.alloc(10_000)
			all = append(all, e[0].send(s.allocWith(random(10_000, i))), e[1].recv(dst))
			targets = append(targets, dst)
		}
	}
	wantOK(all...)
	for i, dst := range targets {
		s.want(random(10_000, uint64(i/2)), dst, "tensor")
	}
}

// abortWhileHeld aborts a Send and a Recv whose streams are held. It checks that done is called
// although the work on the streams is pending. The Send must end with the cause or succeed; the
// result of the Recv is not checked.
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

// betweenDevices sends a tensor between all pairs of devices whose descriptors permit it, in both
// directions, and checks that it arrives.
func betweenDevices(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	f := b.New(t)
	descriptors := f.DeviceDescriptors()
	for _, from := range allocators(t, b) {
		for _, to := range allocators(t, b) {
			if !f.CanCommunicate(descriptors[from.device], descriptors[to.device]) {
				continue
			}
			for i, e := range [][2]*end{{connect, listen}, {listen, connect}} {
				data := random(3000, uint64(i))
				dst := to.alloc(len(data))
				wantOK(e[0].send(from.allocWith(data)), e[1].recv(dst))
				to.want(data, dst, fmt.Sprint(from.device, " to ", to.device))
			}
		}
	}
}
