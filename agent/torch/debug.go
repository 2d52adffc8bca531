package torch

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// WorkerInfo returns the rank and the name of w in the form that PyTorch prints: "WorkerInfo(id=1,
// name=worker1)".
func WorkerInfo(w agent.WorkerInfo) string {
	return fmt.Sprintf("WorkerInfo(id=%d, name=%s)", w.Rank, w.Name)
}

// DebugInfo returns the metrics m of an agent as a new map from names to decimal numbers. Metrics
// that PyTorch's agent has too are under PyTorch's names. PyTorch's thread pool corresponds to the
// handlers of the agent: its size is m.MaxHandlers, and its idle threads are the handlers that
// could still be started.
func DebugInfo(m agent.Metrics) map[string]string {
	info := map[string]string{}
	for name, n := range map[string]int{
		"agent.thread_pool_size":          m.MaxHandlers,
		"agent.num_idle_threads":          m.MaxHandlers - m.RunningHandlers,
		"agent.client_active_calls":       m.PendingCalls,
		"agent.server_active_calls":       m.ServedCalls,
		"agent.server_active_async_calls": m.DeferredReplies,
		"agent.client_blocked_calls":      m.BlockedCalls,
		"agent.server_queued_calls":       m.QueuedRequests,
		"agent.pipes":                     m.Pipes,
	} {
		info[name] = strconv.Itoa(n)
	}
	for name, n := range map[string]uint64{
		"agent.late_answers":      m.LateReplies,
		"agent.repeated_requests": m.DuplicateRequests,
		"agent.turned_away":       m.RejectedPipes,
	} {
		info[name] = strconv.FormatUint(n, 10)
	}
	return info
}

// autogradNames are PyTorch's names of the metrics of distributed autograd.
var autogradNames = []string{"num_autograd_contexts", "num_current_backward_passes"}

// AutogradInfo returns the metrics of g, the *dist.Autograd of a worker, as a new map from PyTorch's
// names to decimal numbers: the contexts on the worker, and the passes that run there.
func AutogradInfo(g interface{ Metrics() map[string]int64 }) map[string]string {
	m, info := g.Metrics(), map[string]string{}
	for _, name := range autogradNames {
		info[name] = strconv.FormatInt(m[name], 10)
	}
	return info
}

// AllInfo returns, in a new map, what DebugInfo returns for a, and what ReferenceInfo and AutogradInfo
// return for the extensions of a that have these metrics.
func AllInfo(a *agent.Agent) map[string]string {
	info := DebugInfo(a.Metrics())
	for _, e := range a.Extensions() {
		if r, ok := e.(interface {
			agent.Extension
			SharedValues() int
		}); ok {
			maps.Copy(info, ReferenceInfo(r))
		}
		if _, ok := e.Metrics()[autogradNames[0]]; ok {
			maps.Copy(info, AutogradInfo(e))
		}
	}
	return info
}
