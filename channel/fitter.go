package channel

import "github.com/tensorpipe-go/tensorpipe/device"

// Fitter is a power that some Channels have besides, in the compatible dialect: to know
// which tensors have no place in their wire form. The Send of such a tensor would close
// the channel, and with it the pipe, which therefore asks before anything of a message
// leaves.
type Fitter interface {
	// Fits says why src cannot be sent, by its size or the pieces in which it lies, or
	// is nil. It may be called at any time, and does not wait.
	Fits(src device.Buffer) error
}
