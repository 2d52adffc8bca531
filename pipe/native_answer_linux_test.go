package pipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestAnswerIsInline checks that an answer of up to 1 MiB has parts inline that are eager or wait for Read otherwise,
// and that only the first message after a received one is an answer.
func TestAnswerIsInline(t *testing.T) {
	cpu := device.CPU()
	for _, m := range []*pipe.Message{
		message(1, []int{100_000}, nil),
		message(2, []int{1 << 20}, nil),
		message(3, nil, []int{65_537}, cpu),
		message(4, nil, []int{100_000, 300_000}),
		message(5, []int{300_000, 10, 0}, []int{500_000, 0, 100, 200_000}, cpu, cpu, cpu, cpu),
	} {
		client, server := connect(t, pathNamed("uv+basic+native"))
		grantCredit(t, client, server)
		for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
			inline := 0
			for range 20 {
				exchangeAfter(t, ends[0], ends[1], m, func(first bool, in *pipe.Incoming) {
					if first && in.Inline() {
						inline++
					}
					if !first {
						require.False(t, in.Inline(), "it is not an answer")
					}
				})
			}
			require.Positive(t, inline, "the run loop rarely is still busy with the message before")
		}
	}
}

// TestAnswerIsNotInline lists messages whose parts of more than 64 KiB are not inline, although they answer one.
func TestAnswerIsNotInline(t *testing.T) {
	cpu, large, kind := device.CPU(), message(1, []int{200_000}, nil), npu.NewKind()
	t.Cleanup(kind.Close)
	withNPU := func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: -1, Factory: npu.New(kind, basic.New())})
	}
	for name, c := range map[string]struct {
		path    string
		message *pipe.Message
		adjust  func(*pipe.Options)
	}{
		"one part that waits for Read":  {"uv+basic+native", message(1, []int{200_000}, []int{70_000}), withNPU},
		"a long description":            {"uv+basic+native", &pipe.Message{Metadata: make([]byte, 5000), Payloads: large.Payloads}, nil},
		"longer than 1 MiB":             {"uv+basic+native", message(1, []int{1<<20 + 1}, nil), nil},
		"parts longer than 1 MiB":       {"uv+basic+native", message(1, []int{1 << 19, 1 << 19, 1}, nil), nil},
		"no eager transfers":            {"uv+basic+native", large, func(o *pipe.Options) { o.NoEager = true }},
		"with a checksum":               {"uv+basic+native", large, func(o *pipe.Options) { o.Checksum = true }},
		"the receiver may choose npu:0": {"uv+basic+native", message(1, nil, []int{200_000}), withNPU},
		"another channel":               {"uv+xth+native", message(1, nil, []int{200_000}, cpu), nil},
		"TLS":                           {"tls+basic+native", large, nil},
		"a transport without polls":     {"mem+basic+native", large, eager},
		"no room in the window":         {"uv+basic+native", message(1, []int{900_000}, nil), func(o *pipe.Options) { o.Limits.ContextWindowBytes = 32 << 20 }},
		"no credit":                     {"uv+basic+native", large, func(o *pipe.Options) { o.Limits.ContextWindowBytes = 1 << 20 }},
	} {
		t.Run(name, func(t *testing.T) {
			adjust := []func(*pipe.Options){}
			if c.adjust != nil {
				adjust = append(adjust, c.adjust)
			}
			client, server := connect(t, pathNamed(c.path), adjust...)
			grantCredit(t, client, server)
			for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
				for range 5 {
					exchangeAfter(t, ends[0], ends[1], c.message, func(_ bool, in *pipe.Incoming) { require.False(t, in.Inline()) })
				}
			}
		})
	}
}

// exchangeAfter writes a small message from to to from, and m twice in the other direction. It calls check with
// each of the two before it is read.
func exchangeAfter(t *testing.T, from, to *pipe.Pipe, m *pipe.Message, check func(first bool, in *pipe.Incoming)) {
	t.Helper()
	small := message(9, []int{3}, nil)
	require.NoError(t, to.Write(testContext(t), small))
	expect(t, from, small)
	var ops []*pipe.WriteOp
	for range 2 {
		ops = append(ops, from.WriteAsync(testContext(t), m))
	}
	for i, op := range ops {
		in := next(t, to)
		check(i == 0, in)
		same(t, m, in.Descriptor(), read(t, in))
		require.NoError(t, op.Wait(testContext(t)))
	}
}
