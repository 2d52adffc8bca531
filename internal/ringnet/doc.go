// Package ringnet is a session of streams between two processes of one machine,
// through memory that both have mapped. A Unix socket between the two is the way
// by which the memory comes, the doorbell, and what tells that the peer is gone.
//
// # Rings
//
// A stream is two rings, one for each direction. A ring has one writer and one
// reader, who share two counters that only grow: how many bytes were written,
// how many were read. Each keeps what it knows in memory of its own and believes
// the other's counter only within what can be; the memory is sealed, so that it
// cannot be cut short, and pages are set aside before an end touches them: there is no
// fault for lack of them unless a peer gives them back while the system has no others.
//
// # Waiting
//
// Who finds nothing looks again and again for a while (package wait), then says
// in the ring that it sleeps, looks once more, and sleeps. Who changes something
// for a sleeper takes that word back and rings: two bytes on the socket, which say
// which ring it is about. So a bell rings once for each sleep, and a peer that is
// stopped has few bytes waiting in its socket.
//
// # Sessions
//
// The streams that one end of a [Session] opens are places in a segment of memory
// which that end makes when it opens the first of them, and sends along with a
// bell. A place is used again when both ends have closed its stream.
package ringnet

import "github.com/tensorpipe-go/tensorpipe/transport"

// ErrCorrupt matches errors about a peer that does not keep to the protocol. It matches
// [transport.ErrFrame], by which a pipe knows that.
var ErrCorrupt error = corrupt{}

type corrupt struct{}

func (corrupt) Error() string { return "peer broke the protocol of shared rings" }
func (corrupt) Unwrap() error { return transport.ErrFrame }
