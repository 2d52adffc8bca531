package xth

import (
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// chunk is the number of bytes copied between two looks at whether anybody
// wants the copying to end: some ten microseconds.
const chunk = 256 << 10

// copyOffer copies chunk by chunk until interrupted says why that has to end. An
// offer that was withdrawn is [channel.ErrAborted]. The caller finishes o.
func copyOffer(dst device.Buffer, o *offer, interrupted func() error) error {
	src, ok := o.begin()
	if !ok {
		return channel.ErrAborted
	}
	c, err := device.NewHostCopy(dst, src)
	for err == nil && c.Step(chunk) == chunk {
		err = interrupted()
	}
	return err
}
