package samehost_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// gpu returns the GPU with that index.
func gpu(index int) device.Device { return device.Device{Kind: cudaipc.Name, Index: index} }

// route is the dialect and the transport of a pipe.
type route struct {
	name    string
	dialect pipe.Dialect
	shared  bool // the transport is shm
	mixed   bool // the channel cuda_basic moves tensors between GPUs and hosts

	// frames makes the second process a hostile one: it returns what its channel sends in place of a tensor.
	frames func(n *node, id uint64, size int) [][]byte

	open func(n *node, d driver.Driver) driver.Driver      // replaces the driver, if it is not nil
	want func(n *node, local, remote device.Device) string // the channel of a pair; nil is cuda_ipc for all
	attr func(rank int) *syscall.SysProcAttr               // of the processes, if it is not nil
}

// The native dialect copies directly, the compatible one through an outbox.
var (
	direct     = route{name: "native+shm", dialect: pipe.DialectNative, shared: true}
	staged     = route{name: "compatible+shm", dialect: pipe.DialectCompatible, shared: true}
	directOver = route{name: "native+uv", dialect: pipe.DialectNative}
	stagedOver = route{name: "compatible+uv", dialect: pipe.DialectCompatible}
)

// node is one of two processes of a test: a device kind on the simulated driver, and a pipe to the
// other process. It implements require.TestingT: a failed requirement ends the process.
type node struct {
	*procgroup.Member
	*pipe.Pipe
	route    route
	kind     *cudaipc.Kind
	control  *cusim.Control
	pipes    *pipe.Context
	listener *pipe.Listener // of the first process
	url      string         // of the listener, for the second one
	host     []byte         // page-locked
	atEnd    []func()       // that free memory which the other process may have mapped
	fails    []string       // of requirements
	wrong    []string       // bytes that check has found
	misuse   string         // a part of the report of the driver that is expected, or ""
}

// Errorf prints a failed requirement.
func (n *node) Errorf(format string, args ...any) {
	n.fails = append(n.fails, fmt.Sprintf(format, args...))
}

// FailNow ends the process with the failed requirements, by a panic.
func (n *node) FailNow() { panic(strings.Join(n.fails, "\n")) }

// pair is the two processes of a test.
type pair struct {
	*procgroup.Group
	t       *testing.T
	options string
	url     string // of the first one's listener
}

// replace starts another second process when the present one has ended.
func (p pair) replace() {
	p.t.Helper()
	p.Restart(1)
	p.Send(1, p.options)
	p.Send(1, p.url)
}

// start starts two processes that call f with their node. options are those of the simulator of both.
func (r route) start(t *testing.T, options map[string]string, f func(n *node)) pair {
	t.Helper()
	lib := cusim.Library(t)
	g := procgroup.StartWith(t, 2, r.attr, func(m *procgroup.Member) error { return r.run(m, lib, f) })
	text, err := json.Marshal(options)
	require.NoError(t, err)
	g.SendAll(string(text))
	p := pair{g, t, string(text), g.ReadLine(0)}
	g.Send(1, p.url)
	return p
}

// alone is the line that the first process gets when the second one has ended.
const alone = "alone"

// finish waits for both processes. The first one frees its memory when the second one, which may have
// mapped it, has ended.
func (p pair) finish() {
	p.t.Helper()
	if err := p.WaitExit(1); err != nil {
		p.t.Log(p.WaitExit(0))
		require.NoError(p.t, err)
	}
	p.Send(0, alone)
	p.Wait()
}

// both runs f in two processes, and waits for them.
func (r route) both(t *testing.T, options map[string]string, f func(n *node)) {
	t.Helper()
	r.start(t, options, f).finish()
}

// run is the main function of a process.
func (r route) run(m *procgroup.Member, lib string, f func(n *node)) error {
	n := &node{Member: m, route: r}
	line, err := m.ReadLine()
	if err != nil {
		return err
	}
	var options map[string]string
	if err := json.Unmarshal([]byte(line), &options); err != nil {
		return err
	}
	if n.control, err = cusim.Open(lib); err != nil {
		return err
	}
	require.NoError(n, n.control.Set("CUSIM_PROCESS", m.Name()))
	for name, value := range options {
		require.NoError(n, n.control.Set(name, value))
	}
	d, err := driver.Open(lib)
	if err != nil {
		return err
	}
	if r.open != nil {
		d = r.open(n, d)
	}
	if n.kind, err = cudaipc.New(drops.WithSites(d, n.control), cudaipc.Options{}); err != nil {
		return err
	}
	if n.pipes, err = r.newContext(n, cudaipc.NewIPC(n.kind)); err != nil {
		return err
	}
	n.connect()
	f(n)
	return n.close()
}

// newContext returns a context with the channel between GPUs, and one between hosts.
func (r route) newContext(n *node, ipc channel.Factory) (*pipe.Context, error) {
	if n.Rank == 1 && r.frames != nil {
		ipc = hostile{ipc, n}
	}
	o := pipe.Options{
		Name: n.Name(), Dialect: r.dialect, Kinds: []device.Kind{n.kind},
		Transports: []pipe.TransportEntry{{Name: "uv", Transport: uv.New()}},
		Channels: []pipe.ChannelEntry{
			{Name: cudaipc.IPCName, Priority: 1200, Factory: ipc},
			{Name: basic.Name, Priority: 1000, Factory: basic.New()},
		},
	}
	if r.mixed {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: cudaipc.BasicName, Priority: 1100, Factory: cudaipc.NewBasic(n.kind, basic.New())})
	}
	if r.shared {
		o.Transports = append(o.Transports, pipe.TransportEntry{Name: shm.Name, Priority: 200, Transport: shm.New()})
	}
	return pipe.New(o)
}

// connect opens the pipe to the other process, and requires that it takes the route.
func (n *node) connect() {
	var err error
	if n.Rank == 0 {
		at := []string{"uv://127.0.0.1:0"}
		if n.route.shared {
			at = append(at, "shm://")
		}
		n.listener, err = n.pipes.Listen(n.Context(), at...)
		require.NoError(n, err)
		n.Send(n.listener.URLs()[0])
		n.accept()
		return
	}
	n.url, err = n.ReadLine()
	require.NoError(n, err)
	n.dial(n.url)
}

func (n *node) dial(url string) {
	var err error
	n.Pipe, err = n.pipes.Dial(n.Context(), url)
	require.NoError(n, err)
	n.requireRoute()
}

// accept waits for the pipe of another process.
func (n *node) accept() {
	var err error
	n.Pipe, err = n.listener.Accept(n.Context())
	require.NoError(n, err)
	n.requireRoute()
}

func (n *node) requireRoute() {
	plan := n.Plan()
	require.Equal(n, n.route.dialect, plan.Dialect)
	require.Equal(n, n.route.shared, plan.Transport == shm.Name, plan)
	n.requireChannel(n.kind.Devices()[0], n.kind.Devices()[len(n.kind.Devices())-1])
}

// requireChannel requires the channel of a pair of GPUs.
func (n *node) requireChannel(local, remote device.Device) {
	want := cudaipc.IPCName
	if n.route.want != nil {
		want = n.route.want(n, local, remote)
	}
	name, _ := n.Plan().Channel(local, remote)
	require.Equal(n, want, name, "between %v and %v: %v", local, remote, n.Plan())
}

// close closes everything, and requires that the driver was not misused.
func (n *node) close() error {
	errs := []error{n.pipes.Close()}
	n.freeHost()
	if n.Rank == 0 {
		errs = append(errs, n.WaitFor(alone))
	}
	for _, f := range n.atEnd {
		f()
	}
	errs = append(errs, n.kind.Close())
	if text := n.control.LastMisuse(); text != "" && (n.misuse == "" || !strings.Contains(text, n.misuse)) {
		errs = append(errs, errors.New(text))
	}
	err := errors.Join(errs...)
	if err == nil && n.Rank == 1 {
		os.Exit(0) // memory that the other process may have mapped stays until the end
	}
	return err
}
