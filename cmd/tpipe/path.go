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
	offer   offerFlags
	dialect string
}

func (f *pathFlags) flags(fs *flag.FlagSet) {
	f.offer.flags(fs, tensorpipe.DefaultProfile())
	fs.StringVar(&f.dialect, "dialect", pipe.DialectAuto, "`dialect` to speak: compatible, which is TensorPipe's own, native, or auto, the best that the peer knows")
}

// options are pipe options with the chosen transports and channels. With TLS,
// which only TCP has, other transports are left out.
func (f *pathFlags) options(tls ...uv.Option) (pipe.Options, error) {
	dialect, err := f.chosenDialect()
	if err != nil {
		return pipe.Options{}, err
	}
	p, err := f.offer.working(tls...)
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

// chosenDialect is the dialect as pipe.Options have it.
func (f *pathFlags) chosenDialect() (string, error) {
	switch f.dialect {
	case pipe.DialectCompatible, pipe.DialectNative, pipe.DialectAuto:
		return f.dialect, nil
	default:
		return "", usageErrorf("-dialect %q: want auto, compatible or native", f.dialect)
	}
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
