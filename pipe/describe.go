package pipe

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// copyTo copies host memory to memory of a device, by the kind among the
// options, in the order of dst's stream.
func (c *Context) copyTo(dst, src device.Buffer) error {
	k, ok := find(c.opts.Kinds, func(k device.Kind) bool { return k.Name() == dst.Device().Kind })
	if !ok {
		return allocationError("no kind for device %s among the options, which a small tensor needs", dst.Device())
	}
	return k.Copy(dst, src)
}

// check reports whether an allocation fits the message.
func (in *Incoming) check(a Allocation) error {
	d := &in.desc
	if len(a.Payloads) != len(d.Payloads) || len(a.Tensors) != len(d.Tensors) {
		return allocationError("memory for %d payloads and %d tensors, the message has %d and %d",
			len(a.Payloads), len(a.Tensors), len(d.Payloads), len(d.Tensors))
	}
	for k, p := range a.Payloads {
		if len(p) != d.Payloads[k].Length {
			return allocationError("payload %d: %d bytes for %d", k, len(p), d.Payloads[k].Length)
		}
	}
	for k, b := range a.Tensors {
		if err := in.checkBuffer(b, d.Tensors[k]); err != nil {
			return allocationError("tensor %d: %w", k, err)
		}
	}
	return nil
}

func (in *Incoming) checkBuffer(b device.Buffer, t TensorDescriptor) error {
	if b.Len() != t.Length {
		return fmt.Errorf("%d bytes for %d", b.Len(), t.Length)
	}
	if !t.TargetDevice.IsZero() && b.Device() != t.TargetDevice {
		return fmt.Errorf("it is on %s, the sender named %s", b.Device(), t.TargetDevice)
	}
	_, err := in.pipe.lane(b.Device(), t.SourceDevice)
	return err
}
