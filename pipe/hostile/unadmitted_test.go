package hostile_test

import (
	"bytes"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// unadmitted is Limits.UnadmittedBytes of the victims.
const unadmitted = 8 << 20

// basicStream is the stream of the channel basic.
const basicStream = 5

// fixedCost bounds the memory of an idle pipe: buffers, goroutines and their stacks at both ends,
// which are both in this process. A compatible pipe has up to five connections, each with buffers
// of TLS.
const fixedCost = 256 << 10

// liveBytes runs the garbage collector and returns the bytes of live objects on the Go heap and of
// stacks.
func liveBytes() int {
	runtime.GC()
	m := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(m)
	return int(m[0].Value.Uint64() + m[1].Value.Uint64())
}

// unadmittedPeer is a peer that the victim has not admitted.
type unadmittedPeer struct {
	pipe *pipe.Pipe // the victim's end, or nil during the handshake
	fill func()     // sends until the victim holds as much as possible
}

// TestMemoryOfUnadmittedPeers checks that all peers that the application has not admitted make the
// victim hold no more memory than the limit together, whatever they send. Those that hold most are
// evicted, with a reason, and new peers are served.
func TestMemoryOfUnadmittedPeers(t *testing.T) {
	memoryOfUnadmittedPeers(t, overTCP, "first packets", "brochures", "messages", "small segments", "queries", "early aborts",
		"descriptors", "replies", "descriptors of many tensors", "brochures of many devices", "messages that it does not read")
}

func TestMemoryOfUnadmittedPeersOverTLS(t *testing.T) {
	memoryOfUnadmittedPeers(t, overTLS(t), "first packets", "messages", "descriptors")
}

func memoryOfUnadmittedPeers(t *testing.T, over network, kinds ...string) {
	// All peers send the same bytes, so that the attackers' copies take little memory.
	frame := make([]byte, descriptorLimit-1)
	large := encodeMessage(native.Message{Metadata: make([]byte, 4_100_000)})[:4_000_000]
	const window = 256 << 10
	segments := bytes.Repeat(append(muxHeader(muxData, 0, basicStream, 16), make([]byte, 16)...), window/16)
	crowded := (&wire.Descriptor{Tensors: slices.Repeat([]wire.TensorDescriptor{{SourceDevice: device.CPU(), TargetDevice: device.CPU()}}, 65_000)}).Append(nil)
	offer := goodBrochure()
	for i := range 4000 {
		offer.ChannelDeviceDescriptors[basic.Name][device.Device{Kind: "cpu", Index: i}] = "any"
	}
	devices := offer.Append(nil)
	var queries, aborts []byte
	for i := range uint64(60_000) {
		queries = native.Control{Kind: native.WantRead, Number: 1 + i}.Append(queries, false)
		aborts = native.Control{Kind: native.Abort, Number: 1 + i}.Append(aborts, false)
	}
	all := map[string]struct {
		bytes int // that one peer tries to make the victim hold
		open  func(testing.TB, *victim) unadmittedPeer
	}{
		"first packets": {handshakeLimit - 1, func(t testing.TB, v *victim) unadmittedPeer {
			r := v.dialRaw(t)
			return unadmittedPeer{fill: func() { r.header(handshakeLimit); r.send(frame[:handshakeLimit-1]) }}
		}},
		"brochures": {handshakeLimit - 1, func(t testing.TB, v *victim) unadmittedPeer {
			r := v.dialRawWith(t, hello())
			return unadmittedPeer{fill: func() { r.header(handshakeLimit); r.send(frame[:handshakeLimit-1]) }}
		}},
		"messages": {4_000_000, nativePeer(func(n *nativeAttack) {
			n.sendOn(messageStream, large)
		})},
		"small segments": {window, nativePeer(func(n *nativeAttack) {
			n.first.send(muxHeader(muxCredit, muxSYN, basicStream, 0))
			n.first.send(segments)
		})},
		"queries": {60_000 * 40, nativePeer(func(n *nativeAttack) {
			n.sendOn(controlStream, queries)
		})},
		"early aborts": {60_000 * 40, nativePeer(func(n *nativeAttack) {
			n.sendOn(controlStream, aborts)
		})},
		"descriptors": {descriptorLimit - 1, compatiblePeer(func(a *attack) {
			a.desc.header(descriptorLimit)
			a.desc.send(frame)
		})},
		"descriptors of many tensors": {65_000 * 150, compatiblePeer(func(a *attack) { a.desc.frame(crowded) })},
		"brochures of many devices": {1 << 20, func(t testing.TB, v *victim) unadmittedPeer {
			r := v.dialRawWith(t, hello())
			return unadmittedPeer{fill: func() { r.frame(devices) }} // the answer asks for connections that never come
		}},
		"replies": {descriptorLimit - 1, compatiblePeer(func(a *attack) {
			a.reply.header(descriptorLimit)
			a.reply.send(frame)
		})},
		"messages that it does not read": {4 << 20, func(t testing.TB, v *victim) unadmittedPeer {
			n := dialNative(t, v)
			p := n.pipe
			n.pipe = nil
			return unadmittedPeer{p, func() {
				for range 128 {
					if p.Write(t.Context(), &pipe.Message{Metadata: frame[:32<<10]}) != nil {
						return
					}
				}
			}}
		}},
	}
	for _, name := range kinds {
		kind := all[name]
		t.Run(name, func(t *testing.T) {
			v := over.newVictim(t, func(o *pipe.Options) {
				o.Limits.UnadmittedBytes = unadmitted
				o.HandshakeTimeout = testTimeout
			})
			liveBytes() // twice, since pools keep memory of the last victim
			empty := liveBytes()
			var unadmittedPeers []unadmittedPeer
			for range race.Pick(8, 2)*unadmitted/kind.bytes + 8 {
				unadmittedPeers = append(unadmittedPeers, kind.open(t, v))
			}
			idle := liveBytes()
			fixed := (idle - empty) / len(unadmittedPeers)
			over := make(chan struct{})
			go func() {
				defer close(over)
				var filling sync.WaitGroup
				for _, s := range unadmittedPeers {
					filling.Go(s.fill)
				}
				filling.Wait()
			}()
			// Objects that are allocated while the collector runs count as live, so that single readings
			// are too high. Bytes that peers hold are in three readings in a row.
			most, recent := idle, [3]int{}
			for n, after := 0, 0; after < len(recent); n++ {
				select {
				case <-over:
					after++
				default:
				}
				recent[n%len(recent)] = liveBytes()
				most = max(most, slices.Min(recent[:]))
				v.requireServing(t)
			}
			waitFor(t, func() bool { return v.Stats().PeersEvicted > 0 }, "a peer is evicted")
			waitFor(t, func() bool { return v.Stats().BytesUnadmitted <= unadmitted }, "evicted peers hold nothing")
			if unadmittedPeers[0].pipe != nil {
				waitFor(t, func() bool {
					failed := 0
					for _, p := range unadmittedPeers {
						if p.pipe.Err() != nil {
							failed++
						}
					}
					return uint64(failed) == v.Stats().PeersEvicted
				}, "the pipes of evicted peers have failed, and no others")
			}
			s := v.Stats()
			t.Logf("%d strangers of %d KiB each hold %d KiB, %d were disconnected", len(unadmittedPeers), fixed>>10, (most-idle)>>10, s.PeersEvicted)
			require.Less(t, fixed, fixedCost)
			require.Less(t, most-idle, 3*unadmitted, "while a buffer grows, the old and the new one exist")
			for i := range unadmittedPeers {
				p := unadmittedPeers[i].pipe
				if p == nil || p.Err() == nil {
					continue
				}
				require.ErrorIs(t, p.Err(), pipe.ErrLimit)
				require.ErrorContains(t, p.Err(), "UnadmittedBytes")
				unadmittedPeers[i] = unadmittedPeer{}
			}
			liveBytes() // pools keep memory for two collections
			liveBytes()
			require.Less(t, liveBytes()-idle, 2*unadmitted, "with what the healthy pipe keeps")
		})
	}
}

func nativePeer(fill func(*nativeAttack)) func(testing.TB, *victim) unadmittedPeer {
	return func(t testing.TB, v *victim) unadmittedPeer {
		n := dialNative(t, v)
		s := unadmittedPeer{n.pipe, func() { fill(n) }}
		n.pipe = nil // a closed pipe would keep its session's memory
		return s
	}
}

func compatiblePeer(fill func(*attack)) func(testing.TB, *victim) unadmittedPeer {
	return func(t testing.TB, v *victim) unadmittedPeer {
		a := dialVictim(t, v)
		return unadmittedPeer{a.pipe, func() { fill(a) }}
	}
}

// TestAdmittedPeersDoNotCount checks that Limits.UnadmittedBytes does not apply to a peer after
// Pipe.Admit, and that a peer that is not admitted is evicted for the same message.
func TestAdmittedPeersDoNotCount(t *testing.T) {
	v := newVictim(t, func(o *pipe.Options) { o.Limits.UnadmittedBytes = 1 << 20 })
	n := dialNative(t, v)
	n.exchange()
	n.pipe.Admit()
	n.pipe.Admit()
	n.sendOn(messageStream, encodeMessage(native.Message{Metadata: make([]byte, 3<<20)}))
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, in.Descriptor().Metadata, 3<<20)
	require.NoError(t, in.Discard(t.Context()))
	require.Zero(t, v.Stats().PeersEvicted)
	n.closeOrderly()

	// For a peer that is not admitted the same message exceeds the limit.
	n = dialNative(t, v)
	n.sendOn(messageStream, encodeMessage(native.Message{Metadata: make([]byte, 3<<20)}))
	_, err = n.pipe.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrLimit)
	require.EqualValues(t, 1, v.Stats().PeersEvicted)
	n.first.Close()
	v.requireIdle(t)
	v.requireServing(t)
}

// TestNothingCountedAfterUse checks that no bytes are counted for an honest unadmitted peer after
// it has exchanged many messages and nothing is held for it.
func TestNothingCountedAfterUse(t *testing.T) {
	for _, dialect := range []pipe.Dialect{pipe.DialectNative, pipe.DialectCompatible} {
		t.Run(string(dialect), func(t *testing.T) {
			v := newVictim(t, func(o *pipe.Options) { o.Limits.UnadmittedBytes = 64 << 20; o.Dialect = dialect })
			v.healthy.Admit()
			peerEnd := v.connectHonest(t, newContext(t, v.over.options("peer")))
			victimEnd := v.accept(t)
			large := bytes.Repeat([]byte("large"), 100_000)
			for i := range 200 {
				m := message(i)
				if i%10 == 0 {
					m.Metadata = large
					m.Payloads[0].Data = large
				}
				for _, ends := range [][2]*pipe.Pipe{{victimEnd, peerEnd}, {peerEnd, victimEnd}} {
					op := ends[0].WriteAsync(t.Context(), m)
					in, err := ends[1].Next(t.Context())
					require.NoError(t, err)
					if i%3 == 0 {
						require.NoError(t, in.Discard(t.Context()))
					} else {
						require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
					}
					in.Release()
					require.NoError(t, op.Wait(t.Context()))
				}
			}
			require.NoError(t, peerEnd.Write(t.Context(), &pipe.Message{Metadata: []byte("the last")}))
			in, err := victimEnd.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, in.Discard(t.Context()))
			waitFor(t, func() bool { return v.Stats().BytesUnadmitted <= 4<<10 }, "nothing is in flight")
			closed := make(chan error, 1)
			go func() { closed <- peerEnd.Close() }()
			require.NoError(t, victimEnd.Close())
			require.NoError(t, <-closed)
			require.Zero(t, v.Stats().BytesUnadmitted)
			require.Zero(t, v.Stats().PeersEvicted)
		})
	}
}

// TestHeldBytesAreCounted checks that Stats.BytesUnadmitted contains what an unadmitted peer makes
// this end hold, and no longer contains it after that is released.
func TestHeldBytesAreCounted(t *testing.T) {
	limited := func(o *pipe.Options) { o.Limits.UnadmittedBytes = 64 << 20 }
	counted := func(v *victim, least, most int) func() bool {
		return func() bool { n := v.Stats().BytesUnadmitted; return n >= least && n <= most }
	}
	t.Run("payloads read ahead", func(t *testing.T) {
		v := newVictim(t, limited)
		a := dialVictim(t, v)
		a.desc.frame(payloadDescriptor(200_000))
		a.desc.frame(make([]byte, 200_000))
		waitFor(t, counted(v, 200_000, 220_000), "the payload counts")
		in, err := a.pipe.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
		waitFor(t, counted(v, 0, 20_000), "it has been read")
	})
	t.Run("descriptors after they were read", func(t *testing.T) {
		v := newVictim(t, limited)
		a := dialVictim(t, v)
		a.desc.frame((&wire.Descriptor{Tensors: slices.Repeat([]wire.TensorDescriptor{{SourceDevice: device.CPU(), TargetDevice: device.CPU()}}, 10_000)}).Append(nil))
		waitFor(t, counted(v, 2_000_000, 4_000_000), "its parts count")
		before := liveBytes()
		in, err := a.pipe.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Discard(t.Context()))
		waitFor(t, counted(v, 0, 20_000), "it has been read")
		liveBytes()
		require.Greater(t, before-liveBytes(), 800_000, "nothing is kept for the next one")
	})
	t.Run("queries", func(t *testing.T) {
		v := newVictim(t, limited)
		n := dialNative(t, v)
		for i := range uint64(1000) {
			n.control(native.Control{Kind: native.WantRead, Number: i})
		}
		waitFor(t, counted(v, 64_000, 80_000), "queries count")
		for range 1000 {
			n.message(inlineMessage("x"))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, in.Discard(t.Context()))
		}
		n.nthControl(native.HaveRead, 1)
		waitFor(t, counted(v, 0, 4<<10), "they were answered")
	})
	t.Run("buffered control frames", func(t *testing.T) {
		v := newVictim(t, limited)
		n := dialNative(t, v)
		n.exchange()
		targets := native.Control{Kind: native.Targets, Devices: slices.Repeat([]device.Device{device.CPU()}, 9000)}
		n.control(targets) // for a message that was sent long ago
		n.control(native.Control{Kind: native.WantRead})
		n.nthControl(native.HaveRead, 1)
		waitFor(t, counted(v, 64<<10, 256<<10), "the buffer counts")
	})
}
