package cudagroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/drops"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// delay is the time in microseconds that each copy and each kernel takes in addition.
const delay = "100"

// maxBytes bounds the tensors of operators that other workers call.
const maxBytes = 1 << 30

// XTHName is the name of the channel between GPUs of one process.
const XTHName = "cuda_xth"

// Worker is the process of one rank in a case. As a require.TestingT it panics on failures.
type Worker struct {
	*procgroup.Member
	Kind   *cudaipc.Kind
	Engine *ops.Engine // with the kernels of Kind

	control *cusim.Control
	id      string          // of the case
	ctx     context.Context // with the streams of the case
	agents  []*agent.Agent

	mu    sync.Mutex
	plans map[string][]*pipe.Plan // of the pipes of the case, by the worker at the other end

	caller atomic.Int32 // see ModelsCalledBy

	sentMu sync.Mutex
	sent   map[*tensor.Storage]int // those that were sent, in a run of drops: how many messages with them are under way
}

var _ require.TestingT = (*Worker)(nil)

func newWorker(m *procgroup.Member, lib string) (*Worker, error) {
	m.Keep("/memfd:cusim ") // Kind.Close keeps memory that a process which still runs may have mapped
	control, err := cusim.Open(lib)
	if err != nil {
		return nil, err
	}
	if err := control.Set("CUSIM_PROCESS", m.Name()); err != nil {
		return nil, err
	}
	if !drops.Running() {
		if err := control.Set("CUSIM_DELAY_US", delay); err != nil {
			return nil, err
		}
	}
	d, err := driver.Open(lib)
	if err != nil {
		return nil, err
	}
	kind, err := cudaipc.New(drops.WithSites(d, control), cudaipc.Options{})
	if err != nil {
		return nil, err
	}
	engine := &ops.Engine{MaxBytes: maxBytes, ByKind: map[string]ops.Kernels{cudaipc.Name: kind.Kernels()}}
	return &Worker{Member: m, Kind: kind, Engine: engine, control: control, sent: map[*tensor.Storage]int{}}, nil
}

// close returns an error if closing the devices fails, or if the driver was misused.
func (w *Worker) close() error {
	err := w.Kind.Close()
	if n := w.control.Misuse(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d misuses of the driver, the last one: %s", n, w.control.LastMisuse()))
	}
	return err
}

// begin prepares w for the case with that ID: the context gets new streams.
func (w *Worker) begin(id string) {
	w.id, w.ctx = id, w.Member.Context()
	w.caller.Store(noCaller)
	w.mu.Lock()
	w.plans = map[string][]*pipe.Plan{}
	w.mu.Unlock()
	for _, d := range w.Kind.Devices() {
		w.ctx = device.WithStream(w.ctx, w.Stream(d))
	}
}

// Context returns the context of the case. It has a stream for each device, the current ones of the test.
func (w *Worker) Context() context.Context { return w.ctx }

// Errorf implements require.TestingT: it panics with the text.
func (w *Worker) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// FailNow implements require.TestingT: it panics.
func (w *Worker) FailNow() { panic("failed") }

// Next returns the name of the worker whose rank is n greater, modulo the number of workers.
func (w *Worker) Next(n int) string { return fmt.Sprint("worker", (w.Rank+n)%w.World) }

// Barrier blocks until all processes of the group have called it. The case fails if one ends before.
func (w *Worker) Barrier() {
	w.Send(barrier)
	line, err := w.ReadLine()
	require.NoError(w, err)
	require.Equal(w, proceed, line, "barrier of the case")
}

// Join joins the static group of the case with the devices of w and the operators of its Engine. configure
// may change the Config. The agent is closed at the end of the case. The error is that of agent.Join.
func (w *Worker) Join(configure func(c *agent.Config)) (*agent.Agent, error) {
	c := agent.Config{
		Name: w.Name(), Rank: w.Rank, WorldSize: w.World, Rendezvous: w.Store, Group: w.id,
		Logger: slog.New(slog.DiscardHandler), Kinds: []device.Kind{w.Kind}, NewContext: w.newContext,
		Operators: aten.Builtin(w.Engine), Events: &agent.Events{PeerConnected: w.connected},
	}
	configure(&c)
	w.overwriteAfterUse(&c)
	a, err := agent.Join(w.Member.Context(), c)
	if err == nil {
		w.agents = append(w.agents, a)
	}
	return a, err
}

// Live joins the group of the case as Join does, calls f, and shuts the agent down.
func (w *Worker) Live(configure func(c *agent.Config), f func(a *agent.Agent)) {
	a, err := w.Join(configure)
	require.NoError(w, err)
	f(a)
	require.NoError(w, a.Shutdown(w.Member.Context()))
}

// closeAgents closes the agents of the case, also those that have been shut down.
func (w *Worker) closeAgents() {
	for _, a := range w.agents {
		_ = a.Close() // of a case that has failed
	}
	w.agents = nil
}

// connected records the plan of a pipe.
func (w *Worker) connected(i agent.PeerConnectedInfo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plans[i.Worker.Name] = append(w.plans[i.Worker.Name], i.Plan)
}

// newContext returns a context with the channels of PyTorch, and their priorities.
func (w *Worker) newContext(o pipe.Options) (*pipe.Context, error) {
	o.Channels = append(tensorpipe.DefaultProfile().Channels,
		pipe.ChannelEntry{Name: XTHName, Priority: 400, Factory: xth.ForKind(XTHName, w.Kind)},
		pipe.ChannelEntry{Name: cudaipc.IPCName, Priority: 300, Factory: cudaipc.NewIPC(w.Kind)},
		pipe.ChannelEntry{Name: cudaipc.BasicName, Priority: 0, Factory: cudaipc.NewBasic(w.Kind, basic.New())},
	)
	return tensorpipe.NewContext(o)
}

// RequireChannel requires that w has a pipe to the worker with that name, and that each such pipe moves
// tensors between the device local of w and the device remote over the channel.
func (w *Worker) RequireChannel(channel, worker string, local, remote device.Device) {
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NotEmpty(w, w.plans[worker], "no pipe to %s", worker)
	for _, p := range w.plans[worker] {
		got, _ := p.Channel(local, remote)
		require.Equal(w, channel, got, "between %v and %v:\n%v", local, remote, p)
	}
}

// RequireRoutes requires that pipes to the worker use the channels that PyTorch uses for the pairs of a
// device map: between GPUs cuda_ipc, or cuda_xth within the process, and with host memory cuda_basic.
func (w *Worker) RequireRoutes(worker string, m agent.DeviceMap) {
	require.NotEmpty(w, m)
	for from, to := range m {
		switch {
		case from == device.CPU() && to == device.CPU(): // inline
		case from == device.CPU() || to == device.CPU():
			w.RequireChannel(cudaipc.BasicName, worker, from, to)
		case worker == w.Name():
			w.RequireChannel(XTHName, worker, from, to)
		default:
			w.RequireChannel(cudaipc.IPCName, worker, from, to)
		}
	}
}
