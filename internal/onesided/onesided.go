// Package onesided is the native half of channels whose receiver copies tensors out of the sender's
// memory: the sender describes a buffer, the receiver pulls it and confirms that, and the sender may
// revoke it before. An [Engine] is one end of such a channel. It has the state of all transfers, writes
// and reads the frames, and calls done. A channel adds a [Protocol]: the form of its frames, and how
// memory is described, pulled and revoked.
//
// Sends and Recvs come in any order. A description without a Recv waits for it, and a Recv waits for
// its description.
package onesided

import "github.com/tensorpipe-go/tensorpipe/device"

// Protocol is what one channel adds to an Engine. Its methods are called concurrently.
type Protocol interface {
	// Describe lets the peer read src until the Source is revoked. It must not block. An error fails
	// this Send only.
	Describe(src device.Buffer) (Source, error)

	// Append appends the encoding of f to dst and returns the extended slice.
	Append(dst []byte, f Frame) []byte

	// Decode decodes a frame that has arrived on the connection with that index in Link.Conns. text is
	// not empty; the result does not alias it. The error ends the channel. Calls for one connection are
	// sequential.
	Decode(conn int, text []byte) (Frame, error)

	// Pull copies the tensor at r.Memory to r.Buf, and may block. It stops early if r.Stopped returns an
	// error, and returns that. An error that matches channel.ErrAborted means that the sender has
	// revoked the tensor: r then waits for an Abort. One that matches io.ErrUnexpectedEOF means that the
	// peer is gone, one that matches channel.ErrProtocol that the description is false; both end the channel. Other errors fail r. A nil error means that the memory has all
	// bytes, or that the copy is enqueued: r then succeeds, even after an Abort or the end of the channel.
	Pull(r *Recv) error

	// Close is called once, at the end of the channel, after Revoke has returned for the Sends that were
	// left. Revoke may still run, or be called later, for a Send that was aborted before; tensors may
	// still be being pulled. Close of the Engine waits for both after this call.
	Close()
}

// Source is memory of this end that the peer may read.
type Source interface {
	// Revoke ends the peer's permission to read the memory. When it returns, the peer does not use the
	// memory any more, or drops the bytes that it reads, or the memory's stream is ordered after the
	// peer's copy. It may block for as long as the peer copies.
	Revoke()

	// Copied is called when the peer has confirmed that it has pulled the tensor. If the peer's copies
	// are asynchronous, it orders the memory's stream after them. The error ends the channel; it matches
	// channel.ErrProtocol if the confirmation is false.
	Copied() error
}

// Remote is memory of the peer.
type Remote struct {
	Memory any // of the Protocol
	Size   uint64
	Pieces int // counts towards the limit of descriptions without a Recv
}

// Frame is a frame of any channel.
type Frame struct {
	Kind   Kind
	ID     uint64 // of the transfer
	Source Source // of a Describe to be written
	Remote Remote // of a Describe that has arrived
}

// Kind is the purpose of a frame.
type Kind byte

const (
	// Describe is written by the sender of a tensor when the peer may pull it.
	Describe Kind = 1 + iota
	// Revoke is written by the sender when the peer may not pull it any more.
	Revoke
	// Copied confirms that the receiver has pulled a tensor; it is written to the last connection.
	Copied
	// Acknowledged confirms, with Config.Acknowledge, that a tensor was valid when the sender received
	// Copied.
	Acknowledged
)

// Scheduler is an optional interface of a Protocol. It determines when and on which goroutines tensors
// are pulled. Without it one goroutine pulls them in order. A channel with a Scheduler must have one
// connection.
//
// Its methods are called with a lock of the Engine held: they must not block or call the Engine.
type Scheduler interface {
	// Start starts to pull r on a goroutine that calls r.Finish in the end. If reading is set it may
	// return true instead: the goroutine that reads frames then calls Pull, and reads no other frame
	// meanwhile unless Engine.ReplaceReader is called.
	Start(r *Recv, reading bool) (inline bool)

	// Stop ends the pulling of r early because of cause. It returns true if the memory is not in use;
	// Finish is then not called. Otherwise Finish is called soon, or has been called. Stop does not
	// wait for it.
	Stop(r *Recv, cause error) (idle bool)
}

// maxUnmatchedPieces bounds the pieces of memory in descriptions for which there is no Recv yet. The
// limits of a pipe are reached earlier.
const maxUnmatchedPieces = 1 << 17
