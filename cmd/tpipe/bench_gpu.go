package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// deviceList is a flag.Value for the GPUs of a bench: none, that of both ends, or that of this process and
// that of the second one.
type deviceList []device.Device

// String returns the devices separated by commas, in the syntax of Set.
func (l *deviceList) String() string {
	var parts []string
	for _, d := range *l {
		parts = append(parts, d.String())
	}
	return strings.Join(parts, ",")
}

// Set replaces the list by the devices in text, such as "cuda:0" or "cuda:0,cuda:1". It returns an error
// for other devices and for more than two.
func (l *deviceList) Set(text string) error {
	var all deviceList
	for part := range strings.SplitSeq(text, ",") {
		d, err := device.Parse(part)
		if err != nil {
			return err
		}
		if d.Kind != cudaipc.Name {
			return fmt.Errorf("want GPUs, such as %s:0, or no -device for host memory", cudaipc.Name)
		}
		all = append(all, d)
	}
	if len(all) > 2 {
		return errors.New("want one device, or one for each of the two processes")
	}
	*l = all
	return nil
}

// ends returns the device of this process and that of the second one, zero for host memory.
func (l deviceList) ends() (here, there device.Device) {
	if len(l) == 0 {
		return here, there
	}
	return l[0], l[len(l)-1]
}

// checkDevices checks that the machine has the devices of -device. The error is a *usageError if it does
// not have one of them. Otherwise it is the reason for which there is no driver, or for which a device
// cannot be used. It initialises no context.
func (b *benchmark) checkDevices() error {
	if len(b.devices) == 0 {
		return nil
	}
	kind, _, err := openGPUs()
	if err != nil {
		return err
	}
	for _, d := range b.devices {
		if why := kind.Unusable()[d]; why != nil {
			err = cmp.Or(err, why)
		} else if !slices.Contains(kind.Devices(), d) {
			err = cmp.Or(err, usageErrorf("-device: there is no %v, only %v", d, deviceNames(kind.Devices())))
		}
	}
	return cmp.Or(err, kind.Close())
}

// checkDeviceFlags returns a *usageError if -device is used with a flag that means nothing for tensors on
// GPUs.
func (b *benchmark) checkDeviceFlags() error {
	if len(b.devices) == 0 {
		return nil
	}
	for _, f := range []struct {
		given     bool
		flag, why string
	}{
		{b.buffers != bench.BuffersDefault, "buffers", "the messages are in memory of the GPU"},
		{b.compression != pipe.CompressionNone, "compress", "tensors on GPUs are not compressed"},
		{b.lanes != torchLanes, "lanes", "no channel for GPUs is " + mpt.UVName},
		{b.anyTracer, "allow-any-tracer", "no channel for GPUs is " + cma.Name},
		{b.peer+b.peerTransport+b.peerChannel != "", "peer", "libtensorpipe is measured with host memory only"},
	} {
		if f.given {
			return usageErrorf("-%s does not fit with -device: %s", f.flag, f.why)
		}
	}
	return nil
}

// knownChannels returns the names that -channel may have.
func (b *benchmark) knownChannels() []string {
	if len(b.devices) > 0 {
		return bench.GPUChannels()
	}
	return channelNames(catalog(torchLanes))
}

// inOneProcess reports whether the channels connect the two ends of one process only.
func inOneProcess(channels []string) bool {
	return len(channels) == 1 && slices.Contains([]string{xth.Name, bench.XTHGPUs}, channels[0])
}
