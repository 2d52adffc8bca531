package pipe_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// withBadDevices makes channels that report devices of this end that do not work, before any pipe
// is opened.
type withBadDevices struct {
	channel.Factory
	bad map[device.Device]error
}

func (f withBadDevices) DeviceDescriptors() map[device.Device]string {
	all := f.Factory.DeviceDescriptors()
	for d := range f.bad {
		delete(all, d)
	}
	return all
}

func (f withBadDevices) Unusable() map[device.Device]error { return f.bad }

// withFailedProbes makes channels whose probe fails for devices of this end.
type withFailedProbes struct {
	channel.Factory
	failed error
}

func (f withFailedProbes) Offer([]byte) []byte { return []byte("offer") }

func (f withFailedProbes) Probe(offer, shown []byte) error { return f.failed }

// devicesOf returns the devices of a kind with three, by their indexes.
func devicesOf(indexes ...int) (out []device.Device) {
	for _, i := range indexes {
		out = append(out, device.Device{Kind: npu.Name, Index: i})
	}
	return out
}

// deviceEnd is an end of a pipe with three devices, and a channel "fast" that does not work with
// some of them.
type deviceEnd struct {
	bad    channel.DeviceErrors // reported by the factory
	failed error                // of the probe
}

// openWith opens a pipe between two such ends. If next is set, both also have a channel "slow" that
// works with all devices.
func openWith(t *testing.T, p path, ends [2]deviceEnd, next bool) (pipes [2]*pipe.Pipe, kinds [2]*delayed.Kind, contexts [2]*pipe.Context) {
	for i, end := range ends {
		kinds[i] = delayed.New(npu.Name, 3)
		t.Cleanup(kinds[i].Close)
		f := onlyDevices{npu.New(kinds[i], basic.New())}
		fast := withFailedProbes{f, end.failed}
		entries := []pipe.ChannelEntry{{Name: "fast", Priority: 2, Factory: fast, MinBytes: 50}}
		if end.bad != nil {
			entries[0].Factory = struct {
				channel.DeviceReporter
				channel.Prober
				channel.Factory
			}{withBadDevices{f, end.bad}, fast, withBadDevices{f, end.bad}}
		}
		if next {
			entries = append(entries, pipe.ChannelEntry{Name: "slow", Priority: 1, Factory: f})
		}
		contexts[i] = newContext(t, p, func(o *pipe.Options) {
			o.Channels, o.Kinds = append(o.Channels, entries...), []device.Kind{kinds[i]}
		})
	}
	pipes[0], pipes[1] = connectContexts(t, contexts[0], contexts[1], p.url)
	return pipes, kinds, contexts
}

// TestBadDeviceLosesItsPairsOnly checks that if one device does not work with a channel, at either
// end or at both, only its pairs lose the channel: they use the next one, or none. The plans of both
// ends have the reason, and tensors arrive on all pairs with a channel.
func TestBadDeviceLosesItsPairsOnly(t *testing.T) {
	bad := devicesOf(1)[0]
	fault := errors.New("it is out of memory")
	for name, end := range map[string]deviceEnd{
		"reported": {bad: channel.DeviceErrors{bad: fault}},
		"probed":   {failed: channel.DeviceErrors{bad: fault, {Kind: "gone"}: errors.New("not served")}},
		"both":     {bad: channel.DeviceErrors{bad: fault}, failed: channel.DeviceErrors{bad: errors.New("not served")}},
	} {
		for where, ends := range map[string][2]deviceEnd{"client": {0: end}, "server": {1: end}, "both": {end, end}} {
			for _, next := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, next channel %v", name, where, next), func(t *testing.T) {
					bothDialects(t, func(t *testing.T, p path) {
						pipes, kinds, contexts := openWith(t, p, ends, next)
						for i, from := range pipes {
							isBad := func(i int, d device.Device) bool {
								return d == bad && (ends[i].bad != nil || ends[i].failed != nil)
							}
							for _, pair := range pairsOf(devicesOf(0, 1, 2)) {
								want := "fast"
								if isBad(i, pair[0]) || isBad(1-i, pair[1]) {
									want = map[bool]string{true: "slow"}[next]
								}
								got, _ := from.Plan().Channel(pair[0], pair[1])
								require.Equal(t, want, got, pair)
								exchangeBetween(t, pipes[i], pipes[1-i], kinds[i], kinds[1-i], pair, want != "")
							}
							own := pipe.Refusal{Kind: "channel", Name: "fast", Local: bad, Reason: fault.Error()}
							require.Equal(t, isBad(i, bad), slices.Contains(from.Plan().Refused, own), from.Plan())
							require.Equal(t, ends[i].bad != nil, slices.Contains(contexts[i].Refused(), own))
							theirs := pipe.Refusal{
								Kind: "channel", Name: "fast", Remote: bad, Reason: []string{"the server: ", "the client: "}[i] + fault.Error(),
							}
							require.Equal(t, isBad(1-i, bad), slices.Contains(from.Plan().Refused, theirs), from.Plan())
						}
					})
				})
			}
		}
	}
}

func pairsOf(all []device.Device) (out [][2]device.Device) {
	for _, a := range all {
		for _, b := range all {
			out = append(out, [2]device.Device{a, b})
		}
	}
	return out
}

// exchangeBetween sends a tensor between the two devices of pair and requires that it arrives or, if
// works is false, that the write fails with the reason.
func exchangeBetween(t *testing.T, from, to *pipe.Pipe, near, far *delayed.Kind, pair [2]device.Device, works bool) {
	t.Helper()
	src, _ := alloc(t, near, pair[0].Index, 100)
	dst, _ := alloc(t, far, pair[1].Index, 100)
	require.NoError(t, near.Write(src, pattern(100, 1)))
	op := from.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src, TargetDevice: pair[1]}}})
	if !works {
		err := op.Wait(testContext(t))
		require.ErrorIs(t, err, pipe.ErrNoChannel)
		require.ErrorContains(t, err, "it is out of memory")
		return
	}
	require.NoError(t, next(t, to).Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{dst}}))
	require.NoError(t, op.Wait(testContext(t)))
	got := make([]byte, 100)
	require.NoError(t, far.Read(got, dst))
	require.NoError(t, dst.Stream().Synchronize(testContext(t)))
	require.Equal(t, pattern(100, 1), got)
}

// TestAllDevicesFailTheProbe checks that a channel whose probe fails for all devices of one end is not
// used.
func TestAllDevicesFailTheProbe(t *testing.T) {
	failed := channel.DeviceErrors{}
	for _, d := range devicesOf(0, 1, 2) {
		failed[d] = errors.New("it is out of memory")
	}
	for _, ends := range [][2]deviceEnd{{0: {failed: failed}}, {1: {failed: failed}}} {
		bothDialects(t, func(t *testing.T, p path) {
			pipes, _, _ := openWith(t, p, ends, true)
			for _, end := range pipes {
				for _, c := range end.Plan().Channels {
					require.NotEqual(t, "fast", c.Channel)
				}
				require.Len(t, end.Plan().Channels, 10, "nine pairs on slow, and the CPU")
			}
		})
	}
}

// TestRefusalOfADevice checks the text of a refusal that is about a device.
func TestRefusalOfADevice(t *testing.T) {
	d := devicesOf(1)[0]
	here := pipe.Refusal{Kind: "channel", Name: "fast", Local: d, Reason: "why"}
	there := pipe.Refusal{Kind: "channel", Name: "fast", Remote: d, Reason: "why"}
	require.Equal(t, "channel fast for npu:1 here: why", here.String())
	require.Equal(t, "channel fast for npu:1 there: why", there.String())
	require.Contains(t, (&pipe.Plan{Refused: []pipe.Refusal{here}}).String(), "not channel fast for npu:1 here")
}
