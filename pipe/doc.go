// Package pipe moves messages between two processes: opaque metadata, small
// payloads in host memory, and tensors on any device, each tensor over the best
// path that the two ends share.
//
// A [Context] holds what pipes may use: transports, which carry descriptions and
// payloads, and channels, which carry tensors. The application lists both. One
// end listens, the other dials:
//
//	l, err := server.Listen(ctx, "uv://0.0.0.0:7000")
//	p, err := l.Accept(ctx)
//
//	p, err := client.Dial(ctx, "uv://host:7000")
//
// From then on both ends do the same things. Sending is one call,
//
//	err := p.Write(ctx, &pipe.Message{Metadata: md, Tensors: ts})
//
// and receiving two, so that the receiver chooses the memory: a description
// arrives first, the bytes go where [Incoming.Read] is told.
//
//	in, err := p.Next(ctx)
//	a := pipe.NewAllocation(in.Descriptor())
//	err = in.Read(ctx, a)
//
// # The path
//
// When a pipe is opened the two ends agree on a transport and, for each pair of
// devices, on a channel. [Pipe.Plan] tells which, and why every other candidate
// was refused. A [Policy] leaves unwanted paths out, and fails the opening where no other
// is left.
//
// # Memory
//
// Memory given to a call belongs to the pipe until the call returns, or until
// the [WriteOp] is done, and not a moment longer: also when the call fails, is
// cancelled, or the peer dies in the middle of it. What a peer claims is checked
// against [Limits] before anything is allocated for it.
//
// # The wire
//
// Two ends of this library speak their own protocol, the native dialect, on one
// session and at most one connection more. With a C++ process that uses
// libtensorpipe a pipe speaks that library's, the compatible dialect, in which
// messages are read in the order sent, and a message of which a part has left
// cannot be given up without closing the pipe. Which it is the handshake finds
// out; Options.Dialect can insist.
package pipe
