package bench

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/cxx"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

//go:embed peers/libtensorpipe/*.h peers/libtensorpipe/*.cc
var peerSources embed.FS

var buildPeer = sync.OnceValues(cxx.Program{Name: "tpbench", Sources: peerSources, Folder: "peers/libtensorpipe"}.Build)

// Libtensorpipe is the C++ library: two processes of the program in
// peers/libtensorpipe, which is compiled at first use and kept.
type Libtensorpipe struct{}

// Name is "libtensorpipe".
func (Libtensorpipe) Name() string { return "libtensorpipe" }

// Build compiles the program, which Measure does too. The error matches
// [errors.ErrUnsupported] where the machine lacks the compiler or the library.
func (Libtensorpipe) Build() error {
	_, err := buildPeer()
	return err
}

// Measure implements Subject. The spec must name one transport and one channel, or
// say which ones this library takes.
func (l Libtensorpipe) Measure(ctx context.Context, s Spec) (*Result, error) {
	s = s.ForPeer()
	if err := l.Check(s); err != nil {
		return nil, err
	}
	path, err := buildPeer()
	if err != nil {
		return nil, err
	}
	samples, err := l.run(ctx, path, s.withDefaults())
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), unviable(s, err))
	}
	if s.Size > 0 { // this protocol knows no other way
		samples.TripRoute, samples.OneWayRoute = s.Channels[0], s.Channels[0]
	}
	return newResult(l.Name(), s, l.plan(s), samples), nil
}

// exitUnviable is how the program ends where the path does not work here.
const exitUnviable = 3

func unviable(s Spec, err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitUnviable {
		return &PathError{s.Transports[0] + " with " + s.Channels[0], err}
	}
	return err
}

// Check returns an error that matches ErrSpec where s cannot be measured with
// this library.
func (Libtensorpipe) Check(s Spec) error {
	s = s.ForPeer()
	if err := s.Check(); err != nil {
		return err
	}
	if s.Compression != pipe.CompressionNone || s.withDefaults().Data != DataPattern {
		return specErrorf("libtensorpipe compresses nothing, and knows no data but %s", DataPattern)
	}
	if len(s.Transports) != 1 || len(s.Channels) != 1 {
		return specErrorf("libtensorpipe is measured on one transport and one channel")
	}
	if s.OneProcess {
		return specErrorf("libtensorpipe is measured between two processes")
	}
	if !slices.Contains(peerTransports(), s.Transports[0]) {
		return specErrorf("libtensorpipe has no transport %q here, only %s", s.Transports[0], strings.Join(peerTransports(), ", "))
	}
	if !slices.Contains(peerChannels(), s.Channels[0]) {
		return specErrorf("libtensorpipe has no channel %q here, only %s", s.Channels[0], strings.Join(peerChannels(), ", "))
	}
	return nil
}

// peerTransports and peerChannels are what the program knows.
func peerTransports() []string { return []string{tcpTransport, shm.Name} }

func peerChannels() []string { return []string{basic.Name, mpt.UVName, cma.Name} }

// plan is the only path there is.
func (Libtensorpipe) plan(s Spec) *pipe.Plan {
	return &pipe.Plan{
		Dialect: pipe.DialectCompatible, Transport: s.Transports[0],
		Channels: []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: s.Channels[0]}},
	}
}

// run starts both processes and collects what the client prints.
func (Libtensorpipe) run(ctx context.Context, path string, s Spec) (Samples, error) {
	var samples Samples
	route := []string{
		"--transport", s.Transports[0], "--channel", s.Channels[0],
		"--lanes", strconv.Itoa(s.Lanes), "--buffers", peerBuffers(s.Buffers),
	}
	server, err := startProcess(ctx, "tpbench server", Program{Path: path, Args: append([]string{"server", "--listen", anyAddress(s.Transports[0])}, route...)})
	if err != nil {
		return samples, err
	}
	url, err := server.line()
	if err != nil {
		return samples, blame(err, server.end())
	}
	client, err := startProcess(ctx, "tpbench client", Program{Path: path, Args: append(append([]string{"client", "--to", url}, route...), peerFlags(s)...)})
	if err != nil {
		return samples, blame(err, server.end())
	}
	err = client.decode(&samples)
	if err == nil {
		err = checkSamples(s, samples)
	}
	return samples, blame(err, client.end(), server.end())
}

func peerFlags(s Spec) []string {
	flags := []string{
		"--size", strconv.Itoa(s.Size), "--depth", strconv.Itoa(s.Depth), "--batch", strconv.Itoa(s.batch()),
		"--round-trips", strconv.Itoa(s.RoundTrips), "--cold-trips", strconv.Itoa(s.ColdTrips),
		"--idle-us", strconv.FormatInt(s.Idle.Microseconds(), 10), "--one-way", strconv.Itoa(s.OneWay),
	}
	if s.Named {
		flags = append(flags, "--named")
	}
	return flags
}

// peerBuffers is what the program calls them.
func peerBuffers(buffers string) string {
	if buffers == BuffersHuge {
		return "huge"
	}
	return "malloc"
}

// checkSamples makes sure that the program measured what it was asked to.
func checkSamples(s Spec, got Samples) error {
	if len(got.RoundTrips) != s.RoundTrips || len(got.ColdTrips) != s.ColdTrips || got.Messages != s.OneWay || (got.OneWay <= 0) != (s.OneWay == 0) {
		return fmt.Errorf("%w: %d warm and %d cold round trips, %d messages in %v; asked for were %d, %d and %d", ErrProtocol,
			len(got.RoundTrips), len(got.ColdTrips), got.Messages, time.Duration(got.OneWay), s.RoundTrips, s.ColdTrips, s.OneWay)
	}
	return nil
}
