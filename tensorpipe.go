// Package tensorpipe has ready-made configurations of the library: its transports and channels with PyTorch's
// names and priorities. One call creates a context that exchanges tensors with other processes that use this
// package, and with C++ programs that use TensorPipe.
//
//	c, err := tensorpipe.NewContext(pipe.Options{Name: "worker0"})
//	l, err := c.Listen(ctx, "uv://0.0.0.0:7000") // at one end
//	p, err := c.Dial(ctx, "uv://node17:7000")    // at the other
//
// # The parts
//
// A pipe connects two processes and carries messages in both directions. A message has three parts: metadata,
// which is small and for the application to interpret; payloads, host memory that is sent with the message; and
// tensors, memory on any device, each sent over the best channel that both ends have. Package
// [github.com/tensorpipe-go/tensorpipe/pipe] has Context, Listener, Pipe and Message. The receiver sees the
// description of a message before it chooses the memory to read it into.
//
// A transport carries bytes between processes: uv over TCP, with TLS if configured
// ([github.com/tensorpipe-go/tensorpipe/uv]); shm through memory that processes of one machine share
// ([github.com/tensorpipe-go/tensorpipe/shm]); and [github.com/tensorpipe-go/tensorpipe/transport/mem] for tests
// within one process. If a listener uses several of them, each pipe uses the best one that reaches its peer,
// whichever URL was dialled:
//
//	l, err := c.Listen(ctx, "uv://0.0.0.0:7000", "shm://")
//
// A channel moves a tensor once both ends have agreed on it:
// [github.com/tensorpipe-go/tensorpipe/channel/basic] over a connection of the transport,
// [github.com/tensorpipe-go/tensorpipe/channel/mpt] over several TCP connections,
// [github.com/tensorpipe-go/tensorpipe/channel/cma] by one copy from the memory of another process, if the system
// permits that, and [github.com/tensorpipe-go/tensorpipe/channel/xth] if both ends are in one process. Applications
// can implement their own transports and channels; [github.com/tensorpipe-go/tensorpipe/transport] and
// [github.com/tensorpipe-go/tensorpipe/channel] define the contracts.
//
// [github.com/tensorpipe-go/tensorpipe/device] describes on which device memory is, and on which stream it is valid.
// A pipe does not know shapes and element types: use [github.com/tensorpipe-go/tensorpipe/tensor], or other types,
// and put what the receiver needs into the metadata.
//
// # Profiles
//
// A [Profile] is a list of transports and channels with their priorities, which can be changed before it is used.
// [NewContext] uses [DefaultProfile]. [TorchProfile] is the part of it that PyTorch has too. Both ends of a pipe must
// use the same names and, if one end is C++, the same order of priorities.
package tensorpipe

import (
	"crypto/tls"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// Profile lists the transports and channels of a context.
type Profile struct {
	Transports []pipe.TransportEntry
	Channels   []pipe.ChannelEntry
}

// TorchProfile returns a new profile of the transports and channels that PyTorch's RPC registers,
// as far as this library has them: the transports uv (priority 0) and shm (200), and the channels
// basic (1000), mpt_uv with 16 lanes (1100) and cma (1200). In the compatible dialect a pipe then
// takes the same path as between C++ processes. In the native dialect, if there is another channel,
// mpt_uv is used only for tensors of [mpt.NativeBytes] or more.
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

// torchLanes is the number of lanes of mpt_uv in PyTorch. It must be the same at both ends.
const torchLanes = 16

// DefaultProfile returns a new profile of all transports and channels that need no configuration:
// those of TorchProfile, and the channel xth (priority 1300) for pipes within one process, which
// C++ peers ignore.
func DefaultProfile() Profile {
	p := TorchProfile()
	p.Channels = append(p.Channels, pipe.ChannelEntry{Name: xth.Name, Priority: 1300, Factory: xth.New()})
	return p
}

// WithTLS returns the [DefaultProfile] over TLS, see [Profile.WithTLS]. One line opens a context
// with it:
//
//	c, err := tensorpipe.WithTLS(config).NewContext(pipe.Options{Name: "worker0"})
func WithTLS(config *tls.Config) Profile { return DefaultProfile().WithTLS(config) }

// WithTLS returns a copy of p whose transports over TCP use TLS 1.3 with config, for dialling and
// for accepting, and whose channels that open TCP connections of their own use TLS too; p does not
// change. All other options of the transports stay. A server asks for certificates of its clients
// as config.ClientAuth states; tls.RequireAndVerifyClientCert admits only peers that have one. The
// peer's certificate must be valid for config.ServerName or, if that is empty, for the host in the
// URL that is dialled. config is copied; see [uv.WithTLS].
//
// Shared memory stays in the profile. It is offered only to processes of this machine and this
// user, which certificates do not cover. To exclude it, remove its entry from Transports, or forbid
// it in pipe.Policy.
func (p Profile) WithTLS(config *tls.Config) Profile {
	secure := Profile{Transports: slices.Clone(p.Transports)}
	var changed []pipe.TransportEntry
	for i, e := range secure.Transports {
		if t, ok := e.Transport.(*uv.Transport); ok {
			secure.Transports[i].Transport = t.With(uv.WithTLS(config, config))
			changed = append(changed, secure.Transports[i])
		}
	}
	secure.Channels = p.channelsOver(changed)
	return secure
}

// NewContext creates a context, which the caller must close, from o and p. If o.Transports or
// o.Channels is nil, the context has those of p; an empty list that is not nil stays empty. A
// channel of p that opens connections of its own ([channel.Layered]) and whose name ends with _ and
// the name of a transport in o.Transports, as mpt_uv does, uses that transport, for example one
// with TLS. NewContext opens no connection. The error matches [pipe.ErrOptions].
func (p Profile) NewContext(o pipe.Options) (*pipe.Context, error) {
	if o.Channels == nil {
		o.Channels = p.channelsOver(o.Transports)
	}
	if o.Transports == nil {
		o.Transports = p.Transports
	}
	return pipe.New(o)
}

// channelsOver returns a copy of p's channels for a context with these transports. A channel that
// opens connections of its own ([channel.Layered]), and whose name ends with _T, uses the first
// transport in transports that is named T. If there is none, the channel is unchanged. p is not
// changed.
func (p Profile) channelsOver(transports []pipe.TransportEntry) []pipe.ChannelEntry {
	channels := slices.Clone(p.Channels)
	for i, c := range channels {
		layered, ok := c.Factory.(channel.Layered)
		at := slices.IndexFunc(transports, func(e pipe.TransportEntry) bool { return strings.HasSuffix(c.Name, "_"+e.Name) })
		if ok && at >= 0 {
			channels[i].Factory = layered.Over(transports[at].Transport)
		}
	}
	return channels
}

// NewContext creates a context, which the caller must close. If o.Transports or o.Channels is nil,
// the context has those of [DefaultProfile]. NewContext opens no connection. The error matches
// [pipe.ErrOptions].
func NewContext(o pipe.Options) (*pipe.Context, error) { return DefaultProfile().NewContext(o) }
