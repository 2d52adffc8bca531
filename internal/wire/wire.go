// Package wire is what a pipe says in TensorPipe's own dialect, message by
// message. Each message is a plain struct with an Append method and a Decode
// function, in the encoding of package nop, and travels as one frame.
//
// A pipe opens like this; the client is the end that dialled:
//
//	client to server, first connection     Packet: SpontaneousConnection
//	client to server, same connection      Brochure: what the client offers
//	server to client, same connection      BrochureAnswer: what they will use
//	client to server, each new connection  Packet: RequestedConnection
//
// The answer gives an id for every connection that the client has to open; the
// id in RequestedConnection tells the server which one it got. Then messages
// flow both ways. Each is a [Descriptor] on the descriptor connection, with the
// payloads behind it as bare frames; where it left devices open, the receiver
// names them in a [DescriptorReply] on the reply connection. Tensors travel on
// the connections of channels; of what those say, the structures are here:
// [CMADescriptor], [XTHDescriptor] and [MPTHello].
//
// # Reading
//
// Decoding accepts what libnop accepts: integers in any width, map entries in
// any order, and of entries with equal keys the first. It is strict about the
// rest: the number of members must be exact, nothing may follow the message,
// and a device needs a kind and an index that is not negative. An empty map
// decodes to nil. Memory is allocated only for bytes that have been seen, and
// within [Limits]. Errors are of type [*Error].
//
// # Writing
//
// Append writes every integer in its shortest form and map entries sorted by
// key. Upstream writes maps in the order of its hash table, so equal messages
// with more than one entry may differ in bytes from its own.
package wire
