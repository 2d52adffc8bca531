package pipe_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// bySize returns a function that sets two channels in the options: xth for tensors of as many bytes
// as the argument from or more, and basic for smaller ones. If the ends have different values, the
// server's counts.
func bySize(from int) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{
			{Name: "xth", Priority: 2, Factory: xth.New(), MinBytes: from},
			{Name: "basic", Priority: 1, Factory: basic.New()},
		}
	}
}

// carried returns, by channel, the numbers of tensors that p has sent and received, in this order.
func carried(p *pipe.Pipe) map[string][2]uint64 {
	out := map[string][2]uint64{}
	for _, c := range p.Stats().Channels {
		out[c.Name] = [2]uint64{c.Sent.Messages, c.Received.Messages}
	}
	return out
}

func TestTensorsTakeTheChannelOfTheirSize(t *testing.T) {
	path := nativePath()
	a, b := newContext(t, path, bySize(1)), newContext(t, path, bySize(1<<20))
	client, server := connectContexts(t, a, b, path.url)
	cpu := device.CPU()
	m := message(1, nil, []int{100_000, 1<<20 - 1, 1 << 20, 2 << 20, 100}, cpu, device.Device{}, cpu, device.Device{}, cpu)
	exchange(t, client, server, m)

	for _, p := range []*pipe.Pipe{client, server} {
		require.Equal(t, map[string][2]uint64{"basic": {2, 2}, "xth": {2, 2}}, carried(p), "one tensor is inline")
		require.Equal(t, []pipe.PlannedChannel{
			{Local: cpu, Remote: cpu, Channel: "xth"},
			{Local: cpu, Remote: cpu, Channel: "basic", Below: 1 << 20},
		}, p.Plan().Channels)
		require.Contains(t, p.Plan().String(), "basic below 1 MiB")
		require.Regexp(t, "inline +parts of up to 64 KiB, up to 1 MiB of a message\n", p.Plan().String())
		require.Empty(t, p.Plan().Refused)
	}
}

// TestSizesAndPolicy checks that a required channel carries tensors of all sizes, whichever end
// requires it.
func TestSizesAndPolicy(t *testing.T) {
	path := nativePath()
	for _, name := range []string{"xth", "basic"} {
		requires := func(o *pipe.Options) { o.Policy.Channels.Require = []string{name} }
		forEachEnd(t, requires, func(t *testing.T, dials, listens func(*pipe.Options)) {
			client, server := connectContexts(t, newContext(t, path, bySize(1<<20), dials), newContext(t, path, bySize(1<<20), listens), path.url)
			exchange(t, client, server, message(1, nil, []int{100_000, 2 << 20}, device.CPU(), device.CPU()))
			for _, p := range []*pipe.Pipe{client, server} {
				require.Equal(t, []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: name}}, p.Plan().Channels)
			}
		})
	}
}

// TestInlineParts checks that a stream that is not in shared memory carries parts of up to 64 KiB inline, up
// to 1 MiB of a message, as the plan states. The limits through shared memory are those of
// TestPolledLargeParts.
func TestInlineParts(t *testing.T) {
	client, server := connect(t, nativePath())
	require.Equal(t, [2]int{64 << 10, 1 << 20}, [2]int{client.Plan().Inline, client.Plan().InlineMessage})
	for i, c := range []struct {
		payloads []int
		inline   bool
	}{
		{[]int{64 << 10}, true},
		{[]int{64<<10 + 1}, false},
		{slices.Repeat([]int{64 << 10}, 16), true},
		{append(slices.Repeat([]int{64 << 10}, 16), 1), false},
	} {
		m := message(i, c.payloads, nil)
		op := client.WriteAsync(testContext(t), m)
		in := next(t, server)
		require.Equal(t, c.inline, in.Inline(), "message %d", i)
		same(t, m, in.Descriptor(), read(t, in))
		require.NoError(t, op.Wait(testContext(t)))
	}
}
