// Package rpcpeer runs programs that measure calls with other libraries, for
// benchmarks that compare ours with them in the same run: grpc-go, whose program is a
// module of its own in bench/peers/grpc, and torch.distributed.rpc, in
// bench/peers/torchrpc. Their comments say what is measured from where to where.
//
// [GRPC] and [Torch] make a [Peer] ready, or say with an error that matches
// [errors.ErrUnsupported] why there is none here. [Peer.Run] starts its two processes,
// measures, and ends them. It may be run again, in turn with something else.
package rpcpeer
