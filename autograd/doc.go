// Package autograd computes gradients of tensors: operators on a [Variable] record a graph, through
// which [Backward] computes the derivatives of a result for all leaves that require them.
//
//	w, err := autograd.Parameter(weights)
//	y, err := autograd.MatMul(ctx, x, w)
//	loss, err := autograd.Sum(ctx, y)
//	err = autograd.Backward(ctx, []*autograd.Variable{loss})
//	gradient := w.Grad().Tensor()
//
// # Operators
//
// The first argument of an operator is a context, in which settings travel: [NoGrad] records no graph,
// and [WithEngine] chooses where results are allocated and which kernels compute. The computations are
// those of package tensor/ops; names, numbers and error texts are PyTorch's. Elements are F32 or F64.
// Gradients of gradients are not supported.
//
// # Graphs
//
// A [Node] stands for an operator, and has an [Edge] for each argument. A [Pass] executes the nodes
// when all gradients of their results are known. Most nodes keep tensors for that, which a pass drops
// unless [RetainGraph] is given; a second pass then fails with [ErrReleased]. A tensor that was changed
// in place since a node has kept it gives [ErrModified].
//
// # Memory of gradients
//
// A gradient moves into its leaf without a copy if nothing else holds its memory, and it is contiguous.
// Hooks share the gradients that they see, which are therefore copied.
package autograd
