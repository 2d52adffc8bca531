package cudaipc

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
)

// TestDrops proves that the channels need each record and wait of an event: the cases of the conformance
// suite, in both dialects, see wrong bytes without it. The transport and the GPU make no difference to the
// calls, so that package mem and the first GPU are enough.
func TestDrops(t *testing.T) {
	newFixture(t, Options{}).simulator()
	const order = "Streams/cuda:0/OffsetWithinAnAllocation"
	t.Run("IPC", func(t *testing.T) {
		drops.Suite{
			Tests: "^TestParityOfIPC$", Skip: isOmitted, Redundant: ipcReasons, Calls: 6,
			Sample: []string{"TestParityOfIPC/" + order, "TestParityOfIPC/Native/" + order},
		}.Prove(t)
	})
	t.Run("XTH", func(t *testing.T) {
		drops.Suite{
			Tests: "^TestParityOfChannels$/^cuda_xth$/^mem$", Skip: isOmitted, Redundant: xthReasons, Calls: 6,
			Sample: []string{"TestParityOfChannels/cuda_xth/mem/" + order, "TestParityOfChannels/cuda_xth/mem/Native/" + order},
		}.Prove(t)
	})
	t.Run("Basic", func(t *testing.T) {
		drops.Suite{
			Tests: "^TestParityOfChannels$/^cuda_basic/^mem$", Skip: isOmitted, Redundant: basicReasons, Calls: 6,
			Sample: []string{"TestParityOfChannels/cuda_basic/mem/" + order, "TestParityOfChannels/cuda_basic/mem/Native/" + order},
		}.Prove(t)
	})
}

// omitted has parts of the names of scenarios that are omitted.
var omitted = []string{
	// The same calls as with the first GPU, and with another way of host memory.
	"cuda:1", "cuda:2", "cuda:3", "IPC/Native/OneSession", "cuda_xth/mem/Native/OneSession",
	// Transfers end at random times, so that two runs make different calls.
	"Abort/AnyTime", "Close/BothEndsAtOnce", "Close/WhileTransfersBegin", "PeerLoss/AtEveryCall", "Ids/AbortAtEveryStage", "Ids/ConcurrentAborts",
	// No byte is received.
	"AbortWhileHeld", "CloseWhileHeld", "/Hostile/", "Close/EndsAllTransfers", "Close/TransfersAfterClose", "PeerLoss/WaitingTransfers",
	// The host waits for copies of this size; thousands of transfers take long.
	"Transfer/Large", "Transfer/ManyBothWays",
}

func isOmitted(scenario string) bool {
	return slices.ContainsFunc(omitted, func(part string) bool { return strings.Contains(scenario, part) })
}

// xthReasons are the reasons why bytes are right without a call of cuda_xth.
var xthReasons = []drops.Reason{
	{
		Text:     "no byte of the tensor is received",
		Scenario: `/Abort/(RecvWithoutSend|SendWithoutRecv)$|/EndRecv/UnreceivedTensor$|/PeerLoss/PeerClosesIdleChannel$`,
		Site:     `< xth.recordWritten <`,
	},
	{
		Text:     "an empty tensor is read",
		Scenario: `/(channel.(CallbacksAreDeferred|EmptyAndNonEmptyTensors)@cuda_xth|EmptyPutsNothingOnTheWire)$`,
		Site:     `^cudaipc.\(\*Stream\).Record < cudaipc.\(\*Stream\).Synchronize < channeltest.allocator.want `,
	},
	{
		Text:     "the tensor was written long before it is copied, because others are sent in between",
		Scenario: `/(channel.SendMultipleTensors@cuda_xth|Transfer/Sizes|(Send|Recv)LongBefore(Send|Recv))$`,
		Site:     `< xth.recordWritten <|^cudaipc.\(\*Stream\).Wait < xth.enqueueCopy <`,
	},
	{
		Text:     "it orders the reuse of freed memory of another GPU, and the memory is not freed",
		Scenario: `/BetweenDevices$`,
		Site:     `< cudaipc.\(\*copyOperation\).finish < cudaipc.\(\*Kind\).Copy < xth.enqueueCopy <`,
	},
}

// ipcReasons are the reasons why bytes are right without a call of cuda_ipc.
var ipcReasons = []drops.Reason{
	{
		Text:     "no byte of the tensor is received",
		Scenario: `/Abort/(OneOfMany|RecvWithoutSend|SendWithoutRecv)$|/Discard/BetweenOthers$|/EndRecv/UnreceivedTensor$|/PeerLoss/PeerClosesIdleChannel$`,
		Site:     `^cudaipc.exchange < cudaipc.\(\*stagedEnd\).pull |cudaipc.\(\*outbox\).exchange |^cudaipc.\(\*ipcEnd\).Describe `,
	},
	{
		Text:     "the memory was overwritten before, and nothing is received",
		Scenario: `/Abort/RecvWithoutSend$`,
		Site:     `^cudaipc.\(\*Stream\).Record < cudaipc.\(\*Stream\).Synchronize < channeltest.allocator.want < channeltest.wantPoison `,
	},
	{
		Text:     "an empty tensor is read",
		Scenario: `/(channel.(CallbacksAreDeferred|EmptyAndNonEmptyTensors)@cuda_ipc|EmptyPutsNothingOnTheWire)$`,
		Site:     `^cudaipc.\(\*Stream\).Record < cudaipc.\(\*Stream\).Synchronize < channeltest.allocator.want `,
	},
	{
		Text:     "the tensor was written long before it is copied, because others are sent in between",
		Scenario: `/(channel.SendMultipleTensors@cuda_ipc|Transfer/Sizes|(Send|Recv)LongBefore(Send|Recv))$`,
		Site:     `^cudaipc.\(\*ipcEnd\).Describe |^cudaipc.exchange < cudaipc.\(\*(ipc|staged)End\).pull `,
	},
	{
		Text:     "the copy out of the slot has ended, because the test has waited for the tensor",
		Scenario: `^TestParityOfIPC/(Transfer|Streams/.*)/(OneAtATime|MemoryIs[A-Za-z]*|Sizes|BetweenDevices)$`,
		Call:     `wait`, Site: `^cudaipc.\(\*outbox\).exchange `,
	},
	{
		Text:     "the slot is not used again before the test has waited for the tensor",
		Scenario: `^TestParityOfIPC/Transfer/OneAtATime$`,
		Call:     `record`, Site: `^cudaipc.exchange < cudaipc.\(\*stagedEnd\).pull `,
	},
}

// basicReasons are the reasons why bytes are right without a call of cuda_basic.
var basicReasons = []drops.Reason{
	{
		Text:     "the memory is ready when the channel has moved the earlier tensors",
		Scenario: `/Streams/.*/(StreamsAreReleasedInAnyOrder|BothWays)$`,
		Site:     `^cudaipc.\(\*Stream\).Record < cudaipc.\(\*basicEnd\).admit `,
	},
}

// keeping is a Kind whose streams and memory are not used again while the process lives, so that calls do not
// depend on garbage collections.
type keeping struct {
	*Kind

	mu   sync.Mutex
	kept []any
}

func (k *keeping) keep(v any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = append(k.kept, v)
}

func (k *keeping) NewStream(d device.Device) (device.Stream, error) {
	s, err := k.Kind.NewStream(d)
	k.keep(s)
	return s, err
}

func (k *keeping) Alloc(d device.Device, size int, s device.Stream) (device.Buffer, error) {
	b, err := k.Kind.Alloc(d, size, s)
	k.keep(b)
	return b, err
}

func (k *keeping) AllocHost(size int, s device.Stream) (device.Buffer, error) {
	b, err := k.Kind.AllocHost(size, s)
	k.keep(b)
	if p, ok := b.Contiguous(); ok {
		copy(p, bytes.Repeat([]byte{0xee}, len(p))) // the copy of its last owner must be over
	}
	return b, err
}

// kinds returns the device kinds of the conformance suite.
func (f *fixture) kinds() []device.Kind {
	if !drops.Running() {
		return []device.Kind{f.Kind}
	}
	k := &keeping{Kind: f.Kind}
	f.Cleanup(func() { clear(k.kept) })
	return []device.Kind{k}
}

// strict returns Backend.Strict in runs of TestDrops, and nil in others. In the first try of a drop sources
// are late, and free memory of the channels is overwritten continually; in the second one targets are late.
func (f *fixture) strict() *channeltest.Strict {
	if !drops.Running() {
		return nil
	}
	first := drops.Try()%2 == 0
	for i, d := range f.Devices() {
		var streams [slotCount]*Stream // in each try, because calls have the numbers of streams
		for j := range streams {
			streams[j] = f.stream(d)
		}
		if first {
			f.repeat(func() { f.gpus[i].overwriteSlots(f, streams) })
		}
	}
	if !first {
		return &channeltest.Strict{LateSource: 1, LateTarget: 6}
	}
	f.repeat(f.overwritePinned)
	return &channeltest.Strict{LateSource: 5, LateTarget: 2}
}

// repeat calls work each millisecond until the end of the test.
func (f *fixture) repeat(work func()) {
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				work()
			}
		}
	})
	f.Cleanup(func() {
		close(ended)
		running.Wait()
	})
}

// overwritePinned overwrites page-locked memory that is free.
func (f *fixture) overwritePinned() {
	other := bytes.Repeat([]byte{0xee}, 64<<10)
	for _, g := range f.gpus {
		g.pinned.mu.Lock()
		for _, blocks := range g.pinned.free {
			for _, b := range blocks {
				copy(b.data, other)
			}
		}
		g.pinned.mu.Unlock()
	}
}

// overwriteSlots overwrites the beginnings of the slots of outboxes that are free and whose events have
// completed. It makes no calls that can be dropped.
func (g *gpu) overwriteSlots(f *fixture, streams [slotCount]*Stream) {
	g.outboxMu.Lock()
	defer g.outboxMu.Unlock()
	for _, b := range g.outboxes {
		var taken []int
		for len(b.free) > 0 {
			taken = append(taken, <-b.free)
		}
		require.NoError(f, g.enter())
		for _, i := range taken {
			if done, err := g.driver.EventDone(b.events[i].handle); done && err == nil {
				require.NoError(f, g.driver.Fill(b.base+driver.Ptr(i*slotSize), 0xeeeeeeee, 64<<10, streams[i].handle))
			}
		}
		for _, s := range streams {
			require.NoError(f, g.driver.SyncStream(s.handle))
		}
		g.leave()
		for _, i := range taken {
			b.free <- i
		}
	}
}
