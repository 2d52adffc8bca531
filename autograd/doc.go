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
// those of package tensor/ops; names, promotion of dtypes and error texts are PyTorch's. Gradients have
// the dtype of their Variable; most operators compute them in F32 and F64 only. Arguments are dense unless the comment of an operator allows sparse ones: [Add],
// [Sub], [Mul], [MulNumber], [DivNumber], [Neg], [Sum], [Clone], [Stack] and [ToDense] do.
//
// The error of an operator is an [*OpError] with its name. It matches [ErrNoTensor] for an argument that
// is nil, [ErrSparse] for one of the wrong layout, and otherwise wraps the error of package tensor/ops.
// [Apply] adds an operator of the application. All operators can be differentiated once: gradients of
// gradients are not supported.
//
// # Graphs
//
// A [Node] stands for an operator, and has an [Edge] for each argument. A [Pass] executes the nodes
// when all gradients of their results are known. Most nodes keep tensors for that, which a pass drops
// unless [RetainGraph] is given; a second pass then fails with [ErrReleased]. A tensor that was changed
// in place since a node has kept it gives [ErrModified]. Several passes may run through one graph at the
// same time.
//
// Functions can be called for gradients: before a node uses those of its results, [Variable.AddHook], and
// after it has computed those of its arguments, [Node.AddPostHook].
//
// # Memory of gradients
//
// A gradient moves into its leaf without a copy if nothing else holds its memory, and it is contiguous;
// until then nodes may compute in that memory. Hooks share the gradients that they see, which are
// therefore copied. The gradients of a sparse tensor and of [Embedding] may be sparse; the sum of a dense
// and a sparse one is dense.
package autograd
