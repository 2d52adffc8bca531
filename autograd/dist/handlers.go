package dist

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// handlers returns the handlers of the messages of this package, by their types.
func (g *Autograd) handlers() map[string]agent.Handler {
	return map[string]agent.Handler{
		gradientsMessage.Type(): gradientsHandler{g},
		cleanupMessage.Type():   handler[cleanupRequest](g.serveCleanup),
		settleMessage.Type():    handler[settleRequest](g.serveSettle),
		findMessage.Type():      handler[findRequest](g.serveFind),
		aliveMessage.Type():     handler[aliveRequest](g.serveAlive),
	}
}

// handler is a handler of messages with one value of type A. It replies at once or later.
type handler[A any] func(ctx context.Context, q *agent.Request, args *A)

type handlerTask[A any] struct {
	serve handler[A]
	args  A
}

// Open implements agent.Handler.
func (h handler[A]) Open(q *agent.Request) (agent.Task, error) {
	t := &handlerTask[A]{serve: h}
	return t, q.Decode(&t.args)
}

// Run implements agent.Task.
func (t *handlerTask[A]) Run(ctx context.Context, q *agent.Request) { t.serve(ctx, q, &t.args) }
