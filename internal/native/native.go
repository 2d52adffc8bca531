// Package native is what two ends of ours say to each other in their own
// dialect, version 1 of the marker: the frames of the message stream and of the
// control stream, and the chunks of the bulk connection. All numbers are
// little-endian. docs/wire.md is the reference for those who write a peer; its
// dumps are printed by [Dump].
//
// A frame is a [Header], a body and, if the header says so, a checksum of both.
// Whoever reads one
//
//   - reads HeaderSize bytes and decodes them with [DecodeMessageHeader] or
//     [DecodeControlHeader], which refuse a body larger than the limits,
//   - reads Header.Rest bytes, and takes the body out of them with Header.Body,
//     which compares the checksum,
//   - decodes the body with [Message.Decode] or [DecodeControl].
//
// The bulk connection carries raw bytes in chunks: a [ChunkHeader], its bytes,
// and a [ChunkTrailer] that says whether they count.
//
// Decoding trusts nothing: counts and lengths are compared with the bytes that
// came and with [Limits] before anything is allocated, and reserved bits and
// bytes must be zero, so that later versions can give them a meaning. Encoding
// appends to a caller's buffer. Neither allocates on the path of messages.
package native
