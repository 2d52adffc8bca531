// Package torch holds what exists only for the names of PyTorch's torch.distributed.rpc: [Backends]
// is a table of agents by name, [DebugInfo] returns metrics under PyTorch's names, and [Error] and
// [WorkerInfo] return the texts of errors and of workers in PyTorch's words.
package torch
