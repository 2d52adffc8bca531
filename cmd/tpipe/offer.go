package main

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// offerFlags choose transports and channels out of the catalog.
type offerFlags struct {
	transports, channels nameList
	lanes                int
	copies               cma.Options // of which flags set AllowAnyTracer
}

// flags declares the flags. Their defaults are what usual has.
func (f *offerFlags) flags(fs *flag.FlagSet, usual tensorpipe.Profile) {
	all := catalog(torchLanes)
	f.transports.names, f.channels.names = transportNames(usual), channelNames(usual)
	fs.Var(&f.transports, "transport", "`list` of transports, separated by commas, out of "+strings.Join(transportNames(all), ","))
	fs.Var(&f.channels, "channel", "`list` of channels, separated by commas, out of "+strings.Join(channelNames(all), ","))
	fs.IntVar(&f.lanes, "lanes", torchLanes, "`number` of connections of the channel mpt_uv; a C++ peer must have as many")
	tracerFlag(fs, &f.copies.AllowAnyTracer)
}

// profile is what the flags name, whether it works on this machine or not. TCP
// connections are made with the options.
func (f *offerFlags) profile(with ...uv.Option) (tensorpipe.Profile, error) {
	if f.lanes < 1 || f.lanes > maxLanes {
		return tensorpipe.Profile{}, usageErrorf("-lanes %d: want 1 to %d", f.lanes, maxLanes)
	}
	p := catalog(f.lanes, with...)
	p.Channels = put(p.Channels, channelName, directCopies(f.copies))
	var transports, channels error
	p.Transports, transports = choose("transport", f.transports, p.Transports, transportName)
	p.Channels, channels = choose("channel", f.channels, p.Channels, channelName)
	return p, cmp.Or(transports, channels)
}

// working is profile for those who open pipes: what the user named has to work
// on this machine. Of the defaults some may not; the plan of a pipe says so.
func (f *offerFlags) working(with ...uv.Option) (tensorpipe.Profile, error) {
	p, err := f.profile(with...)
	if err != nil {
		return p, err
	}
	transport := func(e pipe.TransportEntry) error { return e.Transport.Viable() }
	channel := func(e pipe.ChannelEntry) error { return e.Factory.Viable() }
	return p, cmp.Or(
		allWork("transport", f.transports, p.Transports, transportName, transport),
		allWork("channel", f.channels, p.Channels, channelName, channel),
	)
}

// nameList is the value of a flag that lists names of the catalog.
type nameList struct {
	names []string
	given bool // by the user
}

// String implements flag.Value.
func (l *nameList) String() string { return strings.Join(l.names, ",") }

// Set implements flag.Value.
func (l *nameList) Set(text string) error {
	*l = nameList{strings.Split(text, ","), true}
	return nil
}

// choose leaves the entries that a list names.
func choose[E any](what string, list nameList, all []E, name func(E) string) ([]E, error) {
	if err := allKnown(what, list.names, names(all, name)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e E) bool { return !slices.Contains(list.names, name(e)) }), nil
}

// allWork says which of the entries that the user listed cannot be used.
func allWork[E any](what string, list nameList, chosen []E, name func(E) string, viable func(E) error) error {
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

// pick cuts a list and checks that all in it exist.
func pick(what, list string, known []string) ([]string, error) {
	names := strings.Split(list, ",")
	return names, allKnown(what, names, known)
}

func allKnown(what string, names, known []string) error {
	for _, n := range names {
		if !slices.Contains(known, n) {
			return usageErrorf("-%s: there is no %s %q, only %s", what, what, n, strings.Join(known, ", "))
		}
	}
	return nil
}
