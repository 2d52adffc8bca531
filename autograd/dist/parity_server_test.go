package dist_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// averagingServer adds the gradients of trainers, in rounds.
type averagingServer struct {
	trainers int

	mu        sync.Mutex
	iteration int
	updates   int // in this round
	waiting   []*agent.Future[variable]
	total     variable // of all rounds
	gradient  variable // the average, after a round
}

// TensorpipeName implements codec.Namer.
func (*averagingServer) TensorpipeName() string { return "test.averagingServer" }

// averageArgs is the gradient of a trainer in one round.
type averageArgs struct {
	Iteration int
	Gradient  variable
}

// trainingArgs is the server to which a trainer belongs, and whether its gradients are sparse.
type trainingArgs struct {
	Server *rref.Ref[*averagingServer]
	Sparse bool
}

var (
	average        = rref.NewMethod[*averagingServer, averageArgs, variable]("average")
	serverGradient = rref.NewMethod[*averagingServer, agent.None, variable]("get_gradient")
	trainAveraged  = agent.NewFunc[trainingArgs, agent.None]("trainer_func")
)

// serverMethods returns the methods of an averagingServer.
func serverMethods() rref.Methods {
	return rref.Methods{
		average.ServeAsync((*averagingServer).average),
		serverGradient.Serve(func(s *averagingServer, _ context.Context, _ agent.None) (variable, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.gradient, nil
		}),
	}
}

// average adds a gradient. The future is done when all trainers have added theirs in this round.
func (s *averagingServer) average(ctx context.Context, v averageArgs) *agent.Future[variable] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.Iteration > s.iteration {
		s.iteration, s.updates, s.waiting = v.Iteration, 0, nil
	}
	f := future.New[variable]()
	s.waiting = append(s.waiting, f)
	if s.total == nil {
		s.total = v.Gradient
	} else {
		var err error
		if s.total, err = autograd.Add(ctx, s.total, v.Gradient); err != nil {
			return future.Failed[variable](err)
		}
	}
	if s.updates++; s.updates < s.trainers {
		return f
	}
	var err error
	if s.gradient, err = autograd.DivNumber(ctx, s.total, float64(s.trainers)); err != nil {
		return future.Failed[variable](err)
	}
	for _, w := range s.waiting {
		result, err := autograd.DivNumber(ctx, s.total, float64(s.trainers))
		if err != nil {
			return future.Failed[variable](err)
		}
		_ = w.Set(result)
	}
	return f
}

// trainingRounds is smaller under the race detector: sparse sums grow with each round.
var trainingRounds = race.Pick(10, 4)

// trainingSize is the number of rows and columns of the table, of bags, and of indices in each.
const trainingSize = 10

// trainLocally computes the gradient of a table for random targets in each round, sends it to the server,
// and checks that the average which it gets is the one that the server has.
func trainLocally(ctx context.Context, v trainingArgs) (none agent.None, err error) {
	weight := random(trainingSize, trainingSize)
	indices, err := tensor.Zeros(tensor.I64, trainingSize, trainingSize)
	if err != nil {
		return none, err
	}
	bags := autograd.Bags{Indices: autograd.Constant(indices), Options: ops.BagOptions{Mode: ops.BagMean}, Sparse: v.Sparse}
	for i := range trainingRounds {
		outputs, err := autograd.EmbeddingBag(ctx, weight, bags)
		if err != nil {
			return none, err
		}
		targets := autograd.Constant(randomTensor[float32](trainingSize, trainingSize))
		loss, err := autograd.MSELoss(ctx, outputs, targets, ops.ReductionMean)
		if err != nil {
			return none, err
		}
		if err := autograd.Backward(ctx, []variable{loss}); err != nil {
			return none, err
		}
		gradient, err := average.Go(ctx, v.Server, averageArgs{i, autograd.New(weight.Grad())}).Wait(ctx)
		if err != nil {
			return none, err
		}
		ofServer, err := serverGradient.Call(ctx, v.Server, agent.None{})
		if err != nil {
			return none, err
		}
		if (gradient.Sparse() != nil) != v.Sparse || (ofServer.Sparse() != nil) != v.Sparse {
			return none, fmt.Errorf("the gradients are %v and %v", gradient, ofServer)
		}
		x, y := elements(panicT{}, gradient.Value()), elements(panicT{}, ofServer.Value())
		if !slices.Equal(x, y) || !slices.ContainsFunc(x, func(v float64) bool { return v != 0 }) {
			return none, fmt.Errorf("round %d: the average is %v, and that of the server %v", i, x, y)
		}
	}
	return none, v.Server.Release(ctx)
}

// TestParityAveragingServer has the cases of a server that averages the gradients of three trainers. All
// four workers are servers, and trainers of the others, at once.
func TestParityAveragingServer(t *testing.T) {
	for id, isSparse := range map[string]bool{"rpc/RpcTest.test_my_parameter_server": false, "rpc/TensorPipeAgentRpcTest.test_my_parameter_server_sparse": true} {
		inOneProcessWith(t, id, serving(agent.Funcs{trainAveraged.Serve(trainLocally)}), func(t require.TestingT, w *worker) {
			s := &averagingServer{trainers: parityWorld - 1}
			f := rref.Own(w.Agent, s)
			var trainers []*agent.Future[agent.None]
			for _, to := range w.others() {
				trainers = append(trainers, trainAveraged.Go(w.ctx, w.Agent, to, trainingArgs{f, isSparse}))
			}
			for _, trainer := range trainers {
				_, err := trainer.Wait(w.ctx)
				require.NoError(t, err)
			}
			require.Equal(t, trainingRounds-1, s.iteration)
			require.Equal(t, parityWorld-1, s.updates)
			require.NoError(t, f.Release(w.ctx))
		})
	}
}
