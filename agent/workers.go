package agent

import "context"

// WorkerInfos are the workers of the group by rank, as far as they are known here, without
// clients.
func (a *Agent) WorkerInfos() []WorkerInfo {
	var infos []WorkerInfo
	for _, p := range a.peers.workers() {
		infos = append(infos, p.info)
	}
	return infos
}

// Workers are the workers of the group by rank, as they are now: those of a dynamic
// group are looked up.
func (a *Agent) Workers(ctx context.Context) ([]WorkerInfo, error) {
	if a.isClosed() {
		return nil, &Error{Op: "workers", Err: ErrClosed}
	}
	if err := a.refresh(ctx); err != nil {
		return nil, &Error{Op: "workers", Err: err}
	}
	return a.WorkerInfos(), nil
}

// Worker is who a destination stands for. The error is an *Error and matches
// ErrNoWorker if there is nobody.
func (a *Agent) Worker(ctx context.Context, to To) (WorkerInfo, error) {
	p, err := a.peer(ctx, to)
	if err != nil {
		return WorkerInfo{}, &Error{Op: "worker", Worker: string(to), Err: err}
	}
	return p.info, nil
}

// nameOf is what errors call a destination: the name of the worker, if it is known.
func (a *Agent) nameOf(to To) string {
	if p := a.peers.find(to); p != nil {
		return p.info.Name
	}
	return string(to)
}
