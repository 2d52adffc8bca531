package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/bench"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// pathFlags are the flags that select the transports, channels and dialect that a pipe may use.
type pathFlags struct {
	offer   selectionFlags
	dialect pipe.Dialect
}

func (f *pathFlags) flags(fs *flag.FlagSet) {
	f.offer.flags(fs, tensorpipe.DefaultProfile())
	fs.StringVar((*string)(&f.dialect), "dialect", string(pipe.DialectAuto), "`dialect` to speak: compatible, which is TensorPipe's own, native, or auto, the best that the peer knows")
}

// options returns pipe options with the transports, channels and dialect that the flags select. TCP
// connections use the options tls. If tls is not empty, only the transport over TCP remains,
// because no other one supports TLS. The error is a *usageError, or that of a transport or channel
// that the user has named and that does not work on this machine.
func (f *pathFlags) options(tls ...uv.Option) (pipe.Options, error) {
	dialect, err := f.chosenDialect()
	if err != nil {
		return pipe.Options{}, err
	}
	p, err := f.offer.viableProfile(tls...)
	if err != nil {
		return pipe.Options{}, err
	}
	if len(tls) > 0 {
		p.Transports = slices.DeleteFunc(p.Transports, func(e pipe.TransportEntry) bool { return e.Name != uvName })
		if len(p.Transports) == 0 {
			return pipe.Options{}, usageErrorf("-transport: only %s has TLS", uvName)
		}
	}
	return pipe.Options{Dialect: dialect, Transports: p.Transports, Channels: p.Channels}, nil
}

// chosenDialect returns the value of the flag -dialect, or a *usageError if there is no such
// dialect.
func (f *pathFlags) chosenDialect() (pipe.Dialect, error) {
	switch f.dialect {
	case pipe.DialectCompatible, pipe.DialectNative, pipe.DialectAuto:
		return f.dialect, nil
	default:
		return "", usageErrorf("-dialect %q: want auto, compatible or native", f.dialect)
	}
}

// verboseFlag declares the flag -v in fs, with which a command also prints rejected transports and
// channels. Parsing fs stores its value in *verbose.
func verboseFlag(fs *flag.FlagSet, verbose *bool) {
	fs.BoolVar(verbose, "v", false, "print also the rejected transports and channels with the reasons")
}

// printPlan prints plan, the path of a pipe, to w, indented by two spaces. It includes the rejected
// candidates if verbose is true or the plan has no channel. It ignores errors of writing.
func printPlan(w io.Writer, plan *pipe.Plan, verbose bool) {
	shown := *plan
	if !verbose && len(shown.Channels) > 0 {
		shown.Refused = nil
	}
	for line := range strings.Lines(shown.String()) {
		fmt.Fprint(w, "  ", line)
	}
}

// flagError returns a *usageError that names the flag flagName if err is about the syntax of the
// URL in that flag. It returns any other err unchanged, also nil and the error of a handshake: once
// a handshake has started, a bad address came from the peer and not from the flag.
func flagError(flagName string, err error) error {
	_, address := errors.AsType[*uv.AddrError](err)
	if errors.Is(err, pipe.ErrHandshake) || !address && !errors.Is(err, pipe.ErrURL) {
		return err
	}
	if call, ok := errors.AsType[*pipe.Error](err); ok {
		err = call.Err // the name of the flag replaces that of the call
	}
	return usageErrorf("-%s: %w", flagName, err)
}

// withScheme returns address unchanged if it is empty or has a scheme, such as "shm://". Otherwise
// it returns the URL of that address with the given scheme, so that HOST:PORT is enough.
func withScheme(scheme, address string) string {
	if address == "" || strings.Contains(address, "://") {
		return address
	}
	return scheme + "://" + address
}

// splitAddresses returns the URLs in list, which are separated by commas. One without a scheme is an
// address of TCP.
func splitAddresses(list string) []string {
	urls := strings.Split(list, ",")
	for i, address := range urls {
		urls[i] = withScheme(uvName, address)
	}
	return urls
}

// selectionFlags are the flags that select transports and channels of the catalog.
type selectionFlags struct {
	transports, channels nameList
	lanes                int
	copies               cma.Options // flags set AllowAnyTracer only
}

// flags declares the flags for transports and channels in fs. Their default values are the names of
// the transports and channels in defaults.
func (f *selectionFlags) flags(fs *flag.FlagSet, defaults tensorpipe.Profile) {
	all := catalog(torchLanes)
	f.transports.names, f.channels.names = transportNames(defaults), channelNames(defaults)
	fs.Var(&f.transports, "transport", "`list` of transports, separated by commas, out of "+strings.Join(transportNames(all), ","))
	fs.Var(&f.channels, "channel", "`list` of channels, separated by commas, out of "+strings.Join(channelNames(all), ","))
	fs.IntVar(&f.lanes, "lanes", torchLanes, "`number` of connections of the channel mpt_uv; a C++ peer must have as many")
	tracerFlag(fs, &f.copies.AllowAnyTracer)
}

// profile returns new entries for the transports and channels that the flags select, including
// those that do not work on this machine. TCP connections use the options tcp. The error is a
// *usageError if a name or the number of lanes is invalid.
func (f *selectionFlags) profile(tcp ...uv.Option) (tensorpipe.Profile, error) {
	if f.lanes < 1 || f.lanes > maxLanes {
		return tensorpipe.Profile{}, usageErrorf("-lanes %d: want 1 to %d", f.lanes, maxLanes)
	}
	p := catalog(f.lanes, tcp...)
	p.Channels = put(p.Channels, channelName, directCopies(f.copies))
	var transports, channels error
	p.Transports, transports = choose("transport", f.transports, p.Transports, transportName)
	p.Channels, channels = choose("channel", f.channels, p.Channels, channelName)
	return p, cmp.Or(transports, channels)
}

// viableProfile returns new entries for the transports and channels that the flags select, with the
// options tcp for TCP connections. It fails if one that the user has named does not work on this
// machine. One that is selected by default may not work; the plan of a pipe then shows the reason.
// Otherwise the error is a *usageError.
func (f *selectionFlags) viableProfile(tcp ...uv.Option) (tensorpipe.Profile, error) {
	p, err := f.profile(tcp...)
	if err != nil {
		return p, err
	}
	transport := func(e pipe.TransportEntry) error { return e.Transport.Viable() }
	channel := func(e pipe.ChannelEntry) error { return e.Factory.Viable() }
	return p, cmp.Or(
		checkViable("transport", f.transports, p.Transports, transportName, transport),
		checkViable("channel", f.channels, p.Channels, channelName, channel),
	)
}

// nameList is the value of a flag that lists names of the catalog, separated by commas.
type nameList struct {
	names []string
	given bool // set by the user
}

// String returns the names, separated by commas. It implements flag.Value.
func (l *nameList) String() string { return strings.Join(l.names, ",") }

// Set replaces the list by the names in text, which are separated by commas, and records that the
// user has set the flag. It returns nil: choose checks the names later.
func (l *nameList) Set(text string) error {
	*l = nameList{strings.Split(text, ","), true}
	return nil
}

// choose returns the entries in all whose names are in list, in the order of all. It stores the
// result in the memory of all, which must not be used afterwards. If list has a name that no entry
// has, it returns a *usageError about the flag what.
func choose[E any](what string, list nameList, all []E, name func(E) string) ([]E, error) {
	if err := checkNames(what, list.names, names(all, name)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e E) bool { return !slices.Contains(list.names, name(e)) }), nil
}

// checkViable returns an error for the first entry of chosen for which viable returns one, because
// the entry does not work on this machine. It returns nil if all work, or if the user has not set
// the flag what, whose value is list.
func checkViable[E any](what string, list nameList, chosen []E, name func(E) string, viable func(E) error) error {
	if !list.given {
		return nil
	}
	for _, e := range chosen {
		if err := viable(e); err != nil {
			return fmt.Errorf("-%s: %s does not work on this machine: %w", what, name(e), err)
		}
	}
	return nil
}

// checkNames returns nil if each of names is in known, and otherwise a *usageError about the flag
// what with the first name that is not.
func checkNames(what string, names, known []string) error {
	for _, n := range names {
		if !slices.Contains(known, n) {
			return usageErrorf("-%s: there is no %s %q, only %s", what, what, n, strings.Join(known, ", "))
		}
	}
	return nil
}

// uvName is the name of the transport over TCP, the only one with TLS.
const uvName = "uv"

// torchLanes is the number of lanes of mpt_uv in PyTorch. Both ends of a pipe must use the
// same number with a C++ peer.
const torchLanes = 16

// maxLanes bounds -lanes. Each lane is a connection.
const maxLanes = 128

// catalog returns new entries for all transports and channels that flags can name: those of the
// default profile and those that are off by default. lanes is the number of connections of the
// channel mpt_uv. All TCP connections, also these, use the options tcp.
func catalog(lanes int, tcp ...uv.Option) tensorpipe.Profile {
	p := tensorpipe.DefaultProfile()
	p.Transports = put(p.Transports, transportName,
		pipe.TransportEntry{Name: uvName, Priority: 0, Transport: uv.New(tcp...)},
	)
	p.Channels = put(p.Channels, channelName,
		pipe.ChannelEntry{
			Name: mpt.UVName, Priority: 1100, MinBytes: mpt.NativeBytes,
			Factory: mpt.New(mpt.Lanes{Count: lanes, Transport: uv.New(tcp...)}),
		},
		directCopies(cma.Options{}),
	)
	return p
}

// directCopies returns a new entry for the channel cma with the options o. That channel copies
// tensors directly from the memory of the other process.
func directCopies(o cma.Options) pipe.ChannelEntry {
	return pipe.ChannelEntry{Name: cma.Name, Priority: 1200, Factory: cma.New(o)}
}

// tracerFlag declares the flag -allow-any-tracer in fs, which concerns the channel cma. Parsing fs
// stores its value in *allow.
func tracerFlag(fs *flag.FlagSet, allow *bool) {
	fs.BoolVar(allow, "allow-any-tracer", false, "for the channel cma where Yama's ptrace_scope is 1: let every process of the same user read, change and trace this one, as if Yama were not there")
}

// benchCatalog returns new entries for all transports and channels, with the options t for a
// measurement: the number of lanes, and the options of TCP, shared memory and the channel cma. It
// has the type bench.Catalog.
func benchCatalog(t bench.Tuning) tensorpipe.Profile {
	p := catalog(t.Lanes, t.TCP...)
	p.Channels = put(p.Channels, channelName, directCopies(cma.Options{AllowAnyTracer: t.AllowAnyTracer}))
	at := slices.IndexFunc(p.Transports, func(e pipe.TransportEntry) bool { return e.Name == shm.Name })
	p.Transports[at].Transport = shm.New(t.Shm...)
	return p
}

// pathSummaries explains the transports and channels of the catalog, by name, in a line each.
var pathSummaries = map[string]string{
	uvName:     "TCP, within and between machines; the only transport with TLS",
	shm.Name:   "shared memory between processes of one machine",
	basic.Name: "tensors in turns over one connection; always works",
	mpt.UVName: "large tensors in parallel over several TCP connections (-lanes)",
	cma.Name:   "the receiver copies tensors out of the memory of the sending process, on one Linux machine",
	xth.Name:   "tensors are copied directly where both ends are in one process",
}

// put returns list with each of entries added. An entry whose name is that of an existing one
// replaces the existing one; name returns the name of an entry. put may overwrite the memory of
// list, so the caller uses only the result.
func put[E any](list []E, name func(E) string, entries ...E) []E {
	for _, e := range entries {
		at := slices.IndexFunc(list, func(other E) bool { return name(other) == name(e) })
		if at < 0 {
			list = append(list, e)
		} else {
			list[at] = e
		}
	}
	return list
}

// transportNames returns the names of the transports of p.
func transportNames(p tensorpipe.Profile) []string { return names(p.Transports, transportName) }

// channelNames returns the names of the channels of p.
func channelNames(p tensorpipe.Profile) []string { return names(p.Channels, channelName) }

func transportName(e pipe.TransportEntry) string { return e.Name }

func channelName(e pipe.ChannelEntry) string { return e.Name }

// names returns a new slice with the names of entries in their order. name returns the name of an
// entry.
func names[E any](entries []E, name func(E) string) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = name(e)
	}
	return out
}

// sharedScheme begins the URLs of shared memory.
const sharedScheme = shm.Name + "://"

// listen opens a listener of c on urls and returns it with the URLs to dial, best first. If the
// transports in o, the options of c, include shared memory that works and urls does not, it also
// listens on shared memory under a name that the system picks. That URL is not returned: the
// handshake of a peer on this machine finds it. Closing c closes the listener. The error is that of
// c.Listen.
func listen(ctx context.Context, c *pipe.Context, o pipe.Options, urls []string) (*pipe.Listener, []string, error) {
	shared := func(url string) bool { return strings.HasPrefix(url, sharedScheme) }
	usable := func(e pipe.TransportEntry) bool { return e.Name == shm.Name && e.Transport.Viable() == nil }
	if !slices.ContainsFunc(o.Transports, usable) || slices.ContainsFunc(urls, shared) {
		l, err := c.Listen(ctx, urls...)
		if err != nil {
			return nil, nil, err
		}
		return l, l.URLs(), nil
	}
	l, err := c.Listen(ctx, append(urls, sharedScheme)...)
	if err != nil {
		return nil, nil, err
	}
	return l, slices.DeleteFunc(l.URLs(), shared), nil
}

// showFlags are the flags that select the output of the commands send and recv.
type showFlags struct{ quiet, json, verbose bool }

func (f *showFlags) flags(fs *flag.FlagSet) {
	fs.BoolVar(&f.quiet, "quiet", false, "print errors only")
	fs.BoolVar(&f.json, "json", false, "print the result as JSON, and nothing else to stdout")
	fs.BoolVar(&f.verbose, "v", false, "print also which path the files take, and why no other")
}
