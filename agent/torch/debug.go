package torch

import (
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// DebugInfo returns the metrics m of an agent by name, as decimal text. A metric that PyTorch's
// agent has too has the name that PyTorch gives it; PyTorch's thread pool corresponds to the
// handlers that may run at once.
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
