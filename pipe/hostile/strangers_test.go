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
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// unadmitted is the Limits.UnadmittedBytes of victims here.
const unadmitted = 8 << 20

// basicStream is the stream of the channel basic.
const basicStream = 5

// fixedCost is what a pipe costs without any byte: buffers, goroutines and their stacks at
// both ends, which here are in one process. In the compatible dialect it has up to five
// connections, each with buffers of TLS.
const fixedCost = 256 << 10

// live is the number of bytes in use on the heap and in stacks, without garbage.
func live() int {
	runtime.GC()
	m := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(m)
	return int(m[0].Value.Uint64() + m[1].Value.Uint64())
}

// stranger is a peer that the victim has not admitted.
type stranger struct {
	pipe *pipe.Pipe // the victim's end; nil during the handshake
	fill func()     // makes the victim hold as much as it will, then returns
}

// A message, a frame, a stream: whatever strangers fill, all of them together hold no
// more than the limit. Those that hold most are disconnected, with a reason, and
// newcomers are served throughout.
func TestMemoryOfStrangers(t *testing.T) {
	memoryOfStrangers(t, overTCP, "first packets", "brochures", "messages", "segments of a byte", "questions", "early aborts",
		"descriptors", "replies", "descriptors of many tensors", "brochures of many devices", "messages that it does not take in")
}

func TestMemoryOfStrangersOverTLS(t *testing.T) {
	memoryOfStrangers(t, overTLS(t), "first packets", "messages", "descriptors")
}

func memoryOfStrangers(t *testing.T, over carrier, kinds ...string) {
	// All strangers send the same bytes, so that theirs do not count for much.
	frame := make([]byte, descriptorLimit-1)
	large := text(native.Message{Metadata: make([]byte, 4_100_000)})[:4_000_000]
	const segmentsOf = 64 << 10
	segments := bytes.Repeat(append(muxWord(muxData, 0, basicStream, 1), 1), segmentsOf)
	crowded := (&wire.Descriptor{Tensors: slices.Repeat([]wire.TensorDescriptor{{SourceDevice: device.CPU(), TargetDevice: device.CPU()}}, 65_000)}).Append(nil)
	many := goodBrochure()
	for i := range 4000 {
		many.ChannelDeviceDescriptors[basic.Name][device.Device{Kind: "cpu", Index: i}] = "any"
	}
	devices := many.Append(nil)
	var questions, aborts []byte
	for i := range uint64(60_000) {
		questions = native.Control{Kind: native.WantRead, Number: 1 + i}.Append(questions, false)
		aborts = native.Control{Kind: native.Abort, Number: 1 + i}.Append(aborts, false)
	}
	all := map[string]struct {
		bytes int // that one of them tries to make the victim hold
		open  func(testing.TB, *victim) stranger
	}{
		"first packets": {handshakeLimit - 1, func(t testing.TB, v *victim) stranger {
			r := v.visit(t)
			return stranger{fill: func() { r.header(handshakeLimit); r.send(frame[:handshakeLimit-1]) }}
		}},
		"brochures": {handshakeLimit - 1, func(t testing.TB, v *victim) stranger {
			r := v.visitWith(t, hello())
			return stranger{fill: func() { r.header(handshakeLimit); r.send(frame[:handshakeLimit-1]) }}
		}},
		"messages": {4_000_000, natively(func(n *intruder) {
			n.say(messageStream, large)
		})},
		"segments of a byte": {segmentsOf * 64, natively(func(n *intruder) {
			n.first.send(muxWord(muxCredit, muxSYN, basicStream, 0))
			n.first.send(segments)
		})},
		"questions": {60_000 * 40, natively(func(n *intruder) {
			n.say(controlStream, questions)
		})},
		"early aborts": {60_000 * 40, natively(func(n *intruder) {
			n.say(controlStream, aborts)
		})},
		"descriptors": {descriptorLimit - 1, compatibly(func(a *attack) {
			a.desc.header(descriptorLimit)
			a.desc.send(frame)
		})},
		"descriptors of many tensors": {65_000 * 150, compatibly(func(a *attack) { a.desc.frame(crowded) })},
		"brochures of many devices": {1 << 20, func(t testing.TB, v *victim) stranger {
			r := v.visitWith(t, hello())
			return stranger{fill: func() { r.frame(devices) }} // the answer asks for connections that never come
		}},
		"replies": {descriptorLimit - 1, compatibly(func(a *attack) {
			a.reply.header(descriptorLimit)
			a.reply.send(frame)
		})},
		"messages that it does not take in": {4 << 20, func(t testing.TB, v *victim) stranger {
			n := dialNatively(t, v)
			p := n.pipe
			n.pipe = nil
			return stranger{p, func() {
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
				o.HandshakeTimeout = patience
			})
			live() // twice, for what pools keep of the last victim
			empty := live()
			var strangers []stranger
			for range race.Pick(8, 2)*unadmitted/kind.bytes + 8 {
				strangers = append(strangers, kind.open(t, v))
			}
			idle := live()
			fixed := (idle - empty) / len(strangers)
			most := idle
			over := make(chan struct{})
			go func() {
				defer close(over)
				var filling sync.WaitGroup
				for _, s := range strangers {
					filling.Go(s.fill)
				}
				filling.Wait()
			}()
			for done := false; !done; {
				select {
				case <-over:
					done = true
				default:
				}
				most = max(most, live())
				v.alive(t)
			}
			await(t, func() bool { return v.Stats().PeersEvicted > 0 }, "all that was sent is too much")
			await(t, func() bool { return v.Stats().BytesUnadmitted <= unadmitted }, "those disconnected have gone")
			s := v.Stats()
			t.Logf("%d strangers of %d KiB each hold %d KiB, %d were disconnected", len(strangers), fixed>>10, (most-idle)>>10, s.PeersEvicted)
			require.Less(t, fixed, fixedCost)
			require.Less(t, most-idle, 6*unadmitted, "what is allocated while the collector runs counts as in use")
			ended := 0
			for i := range strangers {
				p := strangers[i].pipe
				if p == nil || p.Err() == nil {
					continue
				}
				require.ErrorIs(t, p.Err(), pipe.ErrLimit)
				require.ErrorContains(t, p.Err(), "UnadmittedBytes")
				strangers[i] = stranger{}
				ended++
			}
			if strangers[0].pipe != nil {
				require.EqualValues(t, s.PeersEvicted, ended)
			}
			live() // pools keep memory for two rounds
			live()
			require.Less(t, live()-idle, 2*unadmitted, "with what the strangers here keep")
		})
	}
}

func natively(fill func(*intruder)) func(testing.TB, *victim) stranger {
	return func(t testing.TB, v *victim) stranger {
		n := dialNatively(t, v)
		s := stranger{n.pipe, func() { fill(n) }}
		n.pipe = nil // one that is down keeps what its session had
		return s
	}
}

func compatibly(fill func(*attack)) func(testing.TB, *victim) stranger {
	return func(t testing.TB, v *victim) stranger {
		a := dialVictim(t, v)
		return stranger{a.pipe, func() { fill(a) }}
	}
}

// A peer that was admitted counts no more, and may hold as much as other limits allow.
func TestAdmittedPeersDoNotCount(t *testing.T) {
	v := newVictim(t, func(o *pipe.Options) { o.Limits.UnadmittedBytes = 1 << 20 })
	n := dialNatively(t, v)
	n.exchange()
	n.pipe.Admit()
	n.pipe.Admit()
	n.say(messageStream, text(native.Message{Metadata: make([]byte, 3<<20)}))
	in, err := n.pipe.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, in.Descriptor().Metadata, 3<<20)
	require.NoError(t, in.Discard(t.Context()))
	require.Zero(t, v.Stats().PeersEvicted)
	n.leave()

	// While it was not, the same message is too much.
	n = dialNatively(t, v)
	n.say(messageStream, text(native.Message{Metadata: make([]byte, 3<<20)}))
	_, err = n.pipe.Next(t.Context())
	require.ErrorIs(t, err, pipe.ErrLimit)
	require.EqualValues(t, 1, v.Stats().PeersEvicted)
	n.first.Close()
	v.quiet(t)
	v.alive(t)
}

// Whatever honest peers do that are not admitted, nothing is counted once it is over.
func TestNothingStaysCounted(t *testing.T) {
	for _, dialect := range []string{pipe.DialectNative, pipe.DialectCompatible} {
		t.Run(dialect, func(t *testing.T) {
			v := newVictim(t, func(o *pipe.Options) { o.Limits.UnadmittedBytes = 64 << 20; o.Dialect = dialect })
			v.here.Admit()
			there := v.welcome(t, newContext(t, v.over.options("guest")))
			here := v.accept(t)
			large := bytes.Repeat([]byte("large"), 100_000)
			for i := range 200 {
				m := message(i)
				if i%10 == 0 {
					m.Metadata = large
					m.Payloads[0].Data = large
				}
				for _, ends := range [][2]*pipe.Pipe{{here, there}, {there, here}} {
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
			require.NoError(t, there.Write(t.Context(), &pipe.Message{Metadata: []byte("the last")}))
			in, err := here.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, in.Discard(t.Context()))
			await(t, func() bool { return v.Stats().BytesUnadmitted <= 4<<10 }, "nothing is under way")
			closed := make(chan error, 1)
			go func() { closed <- there.Close() }()
			require.NoError(t, here.Close())
			require.NoError(t, <-closed)
			require.Zero(t, v.Stats().BytesUnadmitted)
			require.Zero(t, v.Stats().PeersEvicted)
		})
	}
}

// What a peer that is not admitted makes this end hold counts for as long as it is held.
func TestStateOfStrangersCounts(t *testing.T) {
	limited := func(o *pipe.Options) { o.Limits.UnadmittedBytes = 64 << 20 }
	counted := func(v *victim, least, most int) func() bool {
		return func() bool { n := v.Stats().BytesUnadmitted; return n >= least && n <= most }
	}
	t.Run("payloads read ahead", func(t *testing.T) {
		v := newVictim(t, limited)
		a := dialVictim(t, v)
		a.desc.frame(payloadDescriptor(200_000))
		a.desc.frame(make([]byte, 200_000))
		await(t, counted(v, 200_000, 220_000), "the payload counts")
		in, err := a.pipe.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())))
		await(t, counted(v, 0, 20_000), "it has been read")
	})
	t.Run("descriptors after they were read", func(t *testing.T) {
		v := newVictim(t, limited)
		a := dialVictim(t, v)
		a.desc.frame((&wire.Descriptor{Tensors: slices.Repeat([]wire.TensorDescriptor{{SourceDevice: device.CPU(), TargetDevice: device.CPU()}}, 10_000)}).Append(nil))
		await(t, counted(v, 2_000_000, 4_000_000), "its parts count")
		before := live()
		in, err := a.pipe.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, in.Discard(t.Context()))
		await(t, counted(v, 0, 20_000), "it has been read")
		live()
		require.Greater(t, before-live(), 800_000, "nothing is kept for the next one")
	})
	t.Run("questions", func(t *testing.T) {
		v := newVictim(t, limited)
		n := dialNatively(t, v)
		for i := range uint64(1000) {
			n.control(native.Control{Kind: native.WantRead, Number: i})
		}
		await(t, counted(v, 64_000, 80_000), "questions count")
		for range 1000 {
			n.message(inlineMessage("x"))
			in, err := n.pipe.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, in.Discard(t.Context()))
		}
		n.awaitControl(native.HaveRead, 1)
		await(t, counted(v, 0, 4<<10), "they were answered")
	})
	t.Run("control frames that are kept", func(t *testing.T) {
		v := newVictim(t, limited)
		n := dialNatively(t, v)
		n.exchange()
		targets := native.Control{Kind: native.Targets, Devices: slices.Repeat([]device.Device{device.CPU()}, 9000)}
		n.control(targets) // for a message that was sent long ago
		n.control(native.Control{Kind: native.WantRead})
		n.awaitControl(native.HaveRead, 1)
		await(t, counted(v, 64<<10, 256<<10), "the buffer counts")
	})
}
