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

// Libtensorpipe is the Subject that measures the C++ library: two processes of the program in
// peers/libtensorpipe, which is compiled at its first use and cached.
type Libtensorpipe struct{}

// Name returns "libtensorpipe", the name of the C++ library in results.
func (Libtensorpipe) Name() string { return "libtensorpipe" }

// Build compiles the C++ program, unless that was done before, and returns the error of the first
// attempt. Measure does the same. The error matches [errors.ErrUnsupported] if the compiler or the
// library is missing.
func (Libtensorpipe) Build() error {
	_, err := buildPeer()
	return err
}

// Measure runs two processes of the C++ program, which make the transfers that s describes, and
// returns the result. s must name exactly one transport and one channel, in its peer fields or for
// both libraries. The error matches ErrSpec, ErrPath or ErrProtocol, is that of Build or of starting
// a process, a *ProcessError, or the cause of ctx. With an error the result is nil.
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
		return nil, cmp.Or(context.Cause(ctx), asPathError(s, err))
	}
	if s.Size > 0 { // the compatible dialect sends tensors through the channel only
		samples.TripRoute, samples.OneWayRoute = s.Channels[0], s.Channels[0]
	}
	plan := &pipe.Plan{ // no other is possible
		Dialect: pipe.DialectCompatible, Transport: s.Transports[0],
		Channels: []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: s.Channels[0]}},
	}
	return newResult(l.Name(), s, plan, samples), nil
}

// exitUnviable is the exit status of the program if the path does not work here.
const exitUnviable = 3

// asPathError returns a *PathError with the cause err if err shows that the program has exited
// because the path of s does not work here. Otherwise it returns err.
func asPathError(s Spec, err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitUnviable {
		return &PathError{s.Transports[0] + " with " + s.Channels[0], err}
	}
	return err
}

// Transports and channels that the program supports.
var (
	peerTransports = []string{tcpTransport, shm.Name}
	peerChannels   = []string{basic.Name, mpt.UVName, cma.Name}
)

// Check returns an error that matches ErrSpec if s is invalid or the C++ library cannot measure it,
// and nil otherwise.
func (Libtensorpipe) Check(s Spec) error {
	s = s.ForPeer()
	if err := s.Check(); err != nil {
		return err
	}
	if s.Compression != pipe.CompressionNone || s.withDefaults().Data != DataPattern {
		return specErrorf("libtensorpipe has no compression, and no data but %s", DataPattern)
	}
	if len(s.Transports) != 1 || len(s.Channels) != 1 {
		return specErrorf("libtensorpipe needs exactly one transport and one channel")
	}
	if s.OneProcess {
		return specErrorf("libtensorpipe needs two processes")
	}
	if s.onGPU() {
		return specErrorf("libtensorpipe is measured with host memory only")
	}
	if !slices.Contains(peerTransports, s.Transports[0]) {
		return specErrorf("libtensorpipe has no transport %q here, only %s", s.Transports[0], strings.Join(peerTransports, ", "))
	}
	if !slices.Contains(peerChannels, s.Channels[0]) {
		return specErrorf("libtensorpipe has no channel %q here, only %s", s.Channels[0], strings.Join(peerChannels, ", "))
	}
	return nil
}

// run starts a server and a client process of the program at path, and returns the samples that the
// client prints. Both processes have ended when it returns. The error is that of a process, or
// matches ErrProtocol if the output is not as s requests.
func (Libtensorpipe) run(ctx context.Context, path string, s Spec) (Samples, error) {
	var samples Samples
	route := []string{
		"--transport", s.Transports[0], "--channel", s.Channels[0],
		"--lanes", strconv.Itoa(s.Lanes), "--buffers", "malloc",
	}
	if s.Buffers == BuffersHuge {
		route[len(route)-1] = "huge"
	}
	flags := []string{
		"--size", strconv.Itoa(s.Size), "--depth", strconv.Itoa(s.Depth), "--batch", strconv.Itoa(s.batch()),
		"--round-trips", strconv.Itoa(s.RoundTrips), "--cold-trips", strconv.Itoa(s.ColdTrips),
		"--idle-us", strconv.FormatInt(s.Idle.Microseconds(), 10), "--one-way", strconv.Itoa(s.OneWay),
	}
	if s.Named {
		flags = append(flags, "--named")
	}
	server, err := startProcess(ctx, "tpbench server", Program{Path: path, Args: append([]string{"server", "--listen", anyAddress(s.Transports[0])}, route...)})
	if err != nil {
		return samples, err
	}
	url, err := server.line()
	if err != nil {
		return samples, rootCause(err, server.end())
	}
	client, err := startProcess(ctx, "tpbench client", Program{Path: path, Args: append(append([]string{"client", "--to", url}, route...), flags...)})
	if err != nil {
		return samples, rootCause(err, server.end())
	}
	err = client.decode(&samples)
	if err == nil {
		err = checkSamples(s, samples)
	}
	return samples, rootCause(err, client.end(), server.end())
}

// checkSamples returns an error that matches ErrProtocol unless got has exactly the numbers of
// round trips and messages that s requests. Otherwise it returns nil.
func checkSamples(s Spec, got Samples) error {
	if len(got.RoundTrips) != s.RoundTrips || len(got.ColdTrips) != s.ColdTrips || got.Messages != s.OneWay || (got.OneWay <= 0) != (s.OneWay == 0) {
		return fmt.Errorf("%w: %d warm and %d cold round trips, %d messages in %v; requested were %d, %d and %d", ErrProtocol,
			len(got.RoundTrips), len(got.ColdTrips), got.Messages, time.Duration(got.OneWay), s.RoundTrips, s.ColdTrips, s.OneWay)
	}
	return nil
}
