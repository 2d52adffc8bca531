// Package torch holds what exists only for the names of PyTorch's torch.distributed.rpc: [Backends]
// is a table of agents by name, [AllInfo] returns the metrics of a worker under PyTorch's names,
// [MessageTypes] finds message types by them, and [Error], [WorkerInfo] and [Reference] return the
// texts of errors, of workers and of remote references in PyTorch's words.
package torch
