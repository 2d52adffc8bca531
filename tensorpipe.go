// Package tensorpipe is the ready-made set-up of the library: the transports
// and channels that exist, under the names and in the order of preference that
// PyTorch gives them. One call makes a context that exchanges tensors with
// processes like itself and with C++ programs that use TensorPipe.
//
//	c, err := tensorpipe.NewContext(pipe.Options{Name: "worker0"})
//	l, err := c.Listen(ctx, "uv://0.0.0.0:7000") // at one end
//	p, err := c.Dial(ctx, "uv://node17:7000")    // at the other
//
// # The parts
//
// A pipe joins two processes. It carries messages both ways, and a message has
// three parts: metadata, which is small and yours to interpret; payloads, host
// memory that travels with the message itself; and tensors, memory on any
// device, each over the best channel that the two ends share for it. Package
// [github.com/tensorpipe-go/tensorpipe/pipe] is where all of that is: Context,
// Listener, Pipe, Message, and the receiving side, which sees the description
// of a message before it chooses the memory to read it into.
//
// A transport is how bytes leave the process. There is uv, which is TCP, with
// TLS if you set it up ([github.com/tensorpipe-go/tensorpipe/uv]), shm, which is
// memory that processes of one machine share
// ([github.com/tensorpipe-go/tensorpipe/shm]), and
// [github.com/tensorpipe-go/tensorpipe/transport/mem] for tests within one
// process. A listener on several of them lets each pipe take the best that
// reaches its peer, whichever URL was dialled:
//
//	l, err := c.Listen(ctx, "uv://0.0.0.0:7000", "shm://")
//
// A channel is how a tensor moves once both ends know about it:
// [github.com/tensorpipe-go/tensorpipe/channel/basic] over a connection of the
// transport, [github.com/tensorpipe-go/tensorpipe/channel/mpt] over several TCP
// connections at once, [github.com/tensorpipe-go/tensorpipe/channel/cma] by one
// copy out of the memory of another process, where the system allows that, or
// [github.com/tensorpipe-go/tensorpipe/channel/xth] where both ends are in one
// process. You can write your own of both;
// [github.com/tensorpipe-go/tensorpipe/transport] and
// [github.com/tensorpipe-go/tensorpipe/channel] are the contracts.
//
// Where memory lies, and on which stream it is valid, is said by
// [github.com/tensorpipe-go/tensorpipe/device]. Shapes and element types are
// none of the pipe's business: use
// [github.com/tensorpipe-go/tensorpipe/tensor], or types of your own, and put
// what the receiver must know into the metadata.
//
// # Profiles
//
// A [Profile] is a list of transports and channels with their priorities, plain
// data to be changed before it is used. [DefaultProfile] is what [NewContext]
// takes. [TorchProfile] is the part of it that PyTorch has too. Both ends of a
// pipe must use the same names, and the same order of priorities where one end
// is C++.
package tensorpipe

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// Profile lists what the pipes of a context may use.
type Profile struct {
	Transports []pipe.TransportEntry
	Channels   []pipe.ChannelEntry
}

// TorchProfile is what PyTorch's RPC registers, as far as it exists here: the
// transports uv (priority 0) and shm (200), and the channels basic (1000), mpt_uv
// with 16 lanes (1100) and cma (1200). In the native dialect mpt_uv is for tensors of
// [mpt.NativeBytes] or more, where there is another channel for the others. Use it to be sure that a pipe between two
// ends takes the path that it takes to a C++ process.
func TorchProfile() Profile {
	return Profile{
		Transports: []pipe.TransportEntry{
			{Name: "uv", Priority: 0, Transport: uv.New()},
			{Name: shm.Name, Priority: 200, Transport: shm.New()},
		},
		Channels: []pipe.ChannelEntry{
			{Name: basic.Name, Priority: 1000, Factory: basic.New()},
			{
				Name: mpt.UVName, Priority: 1100, MinBytes: mpt.NativeBytes,
				Factory: mpt.New(mpt.Lanes{Count: torchLanes, Transport: uv.New()}),
			},
			{Name: cma.Name, Priority: 1200, Factory: cma.New(cma.Options{})},
		},
	}
}

// torchLanes is how many lanes PyTorch gives to mpt_uv; both ends must have as
// many.
const torchLanes = 16

// DefaultProfile is everything that works without being set up: what
// TorchProfile has, and the channel xth (priority 1300) for pipes within one
// process. C++ peers are not disturbed by it.
func DefaultProfile() Profile {
	p := TorchProfile()
	p.Channels = append(p.Channels, pipe.ChannelEntry{Name: xth.Name, Priority: 1300, Factory: xth.New()})
	return p
}

// NewContext makes a context with p's transports and channels where o lists
// none. A list that is empty but not nil stays empty. Where o lists a transport uv
// of its own, one with TLS perhaps, the lanes of p's mpt_uv go over that. It opens
// nothing.
func (p Profile) NewContext(o pipe.Options) (*pipe.Context, error) {
	if o.Channels == nil {
		o.Channels = p.channelsOver(o.Transports)
	}
	if o.Transports == nil {
		o.Transports = p.Transports
	}
	return pipe.New(o)
}

// channelsOver is p's channels, with lanes over the uv among transports.
func (p Profile) channelsOver(transports []pipe.TransportEntry) []pipe.ChannelEntry {
	channels := slices.Clone(p.Channels)
	for i := range channels {
		lanes, ok := channels[i].Factory.(*mpt.Factory)
		at := slices.IndexFunc(transports, func(e pipe.TransportEntry) bool { return e.Name == "uv" })
		if ok && at >= 0 && channels[i].Name == mpt.UVName {
			channels[i].Factory = lanes.Over(transports[at].Transport)
		}
	}
	return channels
}

// NewContext makes a context with the transports and channels of
// [DefaultProfile] where o lists none of its own. It opens nothing.
func NewContext(o pipe.Options) (*pipe.Context, error) { return DefaultProfile().NewContext(o) }
