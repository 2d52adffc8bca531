package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// pathFlags choose what a pipe may use. Every command that opens pipes has
// them.
type pathFlags struct {
	transports, channels, dialect string
}

func (f *pathFlags) flags(fs *flag.FlagSet) {
	profile := tensorpipe.DefaultProfile()
	fs.StringVar(&f.transports, "transport", strings.Join(transportNames(profile), ","), "`list` of transports to offer, separated by commas")
	fs.StringVar(&f.channels, "channel", strings.Join(channelNames(profile), ","), "`list` of channels to offer, separated by commas")
	fs.StringVar(&f.dialect, "dialect", pipe.DialectAuto, "`dialect` to speak: compatible, which is TensorPipe's own, native, or auto, the best that the peer knows")
}

// options are pipe options with the chosen transports and channels.
func (f *pathFlags) options() (pipe.Options, error) {
	dialect, err := f.chosenDialect()
	if err != nil {
		return pipe.Options{}, err
	}
	profile := tensorpipe.DefaultProfile()
	transports, err := pick("transport", f.transports, transportNames(profile))
	if err != nil {
		return pipe.Options{}, err
	}
	channels, err := pick("channel", f.channels, channelNames(profile))
	if err != nil {
		return pipe.Options{}, err
	}
	return pipe.Options{
		Dialect:    dialect,
		Transports: slices.DeleteFunc(profile.Transports, func(e pipe.TransportEntry) bool { return !slices.Contains(transports, e.Name) }),
		Channels:   slices.DeleteFunc(profile.Channels, func(e pipe.ChannelEntry) bool { return !slices.Contains(channels, e.Name) }),
	}, nil
}

// chosenDialect is the dialect as pipe.Options have it.
func (f *pathFlags) chosenDialect() (string, error) {
	switch f.dialect {
	case pipe.DialectCompatible, pipe.DialectNative, pipe.DialectAuto:
		return f.dialect, nil
	default:
		return "", usageErrorf("-dialect %q: want auto, compatible or native", f.dialect)
	}
}

// pick cuts a list and checks that all in it exist.
func pick(what, list string, known []string) ([]string, error) {
	names := strings.Split(list, ",")
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, usageErrorf("-%s: there is no %s %q, only %s", what, what, n, strings.Join(known, ", "))
		}
	}
	return names, nil
}

func transportNames(p tensorpipe.Profile) []string {
	return names(p.Transports, func(e pipe.TransportEntry) string { return e.Name })
}

func channelNames(p tensorpipe.Profile) []string {
	return names(p.Channels, func(e pipe.ChannelEntry) string { return e.Name })
}

func names[E any](entries []E, name func(E) string) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = name(e)
	}
	return out
}

// verboseFlag declares the flag of commands that print a plan.
func verboseFlag(fs *flag.FlagSet, verbose *bool) {
	fs.BoolVar(verbose, "v", false, "print also which transports and channels the pipe does not take, and why")
}

// printPlan prints the path of a pipe, indented. The paths not taken are
// printed to those who ask, and to everyone where none was found.
func printPlan(w io.Writer, plan *pipe.Plan, verbose bool) {
	shown := *plan
	if !verbose && len(shown.Channels) > 0 {
		shown.Refused = nil
	}
	for line := range strings.Lines(shown.String()) {
		fmt.Fprint(w, "  ", line)
	}
}

// blame says that a flag is to be corrected, where err is about the form of its
// URL. Once a handshake has begun, bad addresses are those that the peer gave.
func blame(flagName string, err error) error {
	_, address := errors.AsType[*uv.AddrError](err)
	if errors.Is(err, pipe.ErrHandshake) || !address && !errors.Is(err, pipe.ErrURL) {
		return err
	}
	if call, ok := errors.AsType[*pipe.Error](err); ok {
		err = call.Err // without the call, which the flag says better
	}
	return usageErrorf("-%s: %w", flagName, err)
}
