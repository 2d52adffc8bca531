package train

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Paths returns how the workers of the group of c, which workers describes, exchange messages, for each pair.
// The error is that of agent.Inspect, or of a worker that has not answered.
func Paths(ctx context.Context, c agent.Config, workers []WorkerResult) ([]Path, error) {
	all, err := agent.Inspect(ctx, c)
	if err != nil {
		return nil, err
	}
	var paths []Path
	for _, w := range all {
		if w.Err != nil {
			return nil, w.Err
		}
		from := slices.Index(Names, w.Worker.Name)
		for _, p := range w.Pipes {
			known := slices.ContainsFunc(paths, func(q Path) bool { return q.From == w.Worker.Name && q.To == p.Worker.Name })
			if from >= 0 && from < slices.Index(Names, p.Worker.Name) && !known {
				paths = append(paths, Path{From: w.Worker.Name, To: p.Worker.Name, Path: p.Path})
			}
		}
	}
	withChannels(paths, workers)
	return paths, nil
}
