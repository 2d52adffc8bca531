package agent

import "strconv"

// Metrics is a snapshot of what an agent is doing, and of what it has counted.
type Metrics struct {
	MaxHandlers     int // that run at once
	RunningHandlers int // of those
	QueuedRequests  int // for one of those

	PendingCalls int // of this worker
	BlockedCalls int // of those: they wait for room
	ServedCalls  int // requests that are not answered
	LaterAnswers int // of those: the handler has returned
	Pipes        int // that are up

	LateAnswers      uint64 // to calls for which nobody waited any more
	RepeatedRequests uint64 // that came again while they were served
	TurnedAway       uint64 // pipes that others opened
}

// Metrics is a snapshot of what the agent is doing.
func (a *Agent) Metrics() Metrics {
	m := Metrics{
		MaxHandlers:      a.slots.max,
		Pipes:            len(a.pipesUp()),
		PendingCalls:     len(a.PendingCalls()),
		BlockedCalls:     a.aside.count(CallBlocked),
		LateAnswers:      a.stats.late.Load(),
		RepeatedRequests: a.stats.repeated.Load(),
		TurnedAway:       a.stats.turnedAway.Load(),
	}
	m.RunningHandlers, m.QueuedRequests = a.slots.counts()
	for _, r := range a.ServedCalls() {
		m.ServedCalls++
		if r.State == ServedLater {
			m.LaterAnswers++
		}
	}
	return m
}

// DebugInfo is Metrics by name. The names are PyTorch's where it has such a thing; its
// pool of threads corresponds to the handlers that may run at once.
func (a *Agent) DebugInfo() map[string]string {
	m := a.Metrics()
	info := map[string]string{}
	for name, n := range map[string]int{
		"agent.thread_pool_size":          m.MaxHandlers,
		"agent.num_idle_threads":          m.MaxHandlers - m.RunningHandlers,
		"agent.client_active_calls":       m.PendingCalls,
		"agent.server_active_calls":       m.ServedCalls,
		"agent.server_active_async_calls": m.LaterAnswers,
		"agent.client_blocked_calls":      m.BlockedCalls,
		"agent.server_queued_calls":       m.QueuedRequests,
		"agent.pipes":                     m.Pipes,
	} {
		info[name] = strconv.Itoa(n)
	}
	for name, n := range map[string]uint64{
		"agent.late_answers":      m.LateAnswers,
		"agent.repeated_requests": m.RepeatedRequests,
		"agent.turned_away":       m.TurnedAway,
	} {
		info[name] = strconv.FormatUint(n, 10)
	}
	return info
}
