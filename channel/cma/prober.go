package cma

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// An offer is the process id, the address of a nonce in that process, and the nonce itself, which lies
// in the memory of the offer. Each half of the nonce is long enough to be unique among processes.
const (
	nonceAt   = 4 + 8
	nonceSize = 2 * nonceHalf
	nonceHalf = 8
	offerSize = nonceAt + nonceSize
)

// Offer implements [channel.Prober]. It returns this process's id, the address of a nonce, and the
// nonce itself, which lies in the returned memory: the caller must keep it reachable until the peer
// has read it. The first half of the nonce is random, or derived from theirs, the peer's offer, so
// that a peer which copies the offer of another process is detected. By the second half this process
// recognizes its own nonces.
func (f *Factory) Offer(theirs []byte) []byte {
	out := make([]byte, offerSize)
	nonce := out[nonceAt:]
	binary.LittleEndian.PutUint32(out, uint32(os.Getpid()))
	binary.LittleEndian.PutUint64(out[4:], segmentOf(nonce).address)
	if theirs == nil {
		_, _ = rand.Read(nonce[:nonceHalf]) // does not fail
	} else {
		copy(nonce, responseTo(theirs))
	}
	copy(nonce[nonceHalf:], processMAC(nonce[:nonceHalf]))
	return out
}

// responseTo returns the first half of the nonce, a hash of offer, with which the end that received
// offer must respond to it.
func responseTo(offer []byte) []byte {
	sum := sha256.Sum256(offer)
	return sum[:nonceHalf]
}

// Probe implements [channel.Prober]. It reads the nonce from the memory of the process that offer
// names, and compares it with the one in offer. The error is a [*ReadError] if the memory cannot be
// read, matches channel.ErrProtocol if offer is malformed, and is another one if the process is not
// the peer or the nonce does not respond to shown, the offer of this end.
func (f *Factory) Probe(offer, shown []byte) error {
	pid, err := processOf(offer)
	if err != nil {
		return err
	}
	nonce := offer[nonceAt:]
	if err := checkNonce(pid, nonce, shown); err != nil {
		return err
	}
	src := [1]segment{{binary.LittleEndian.Uint64(offer[4:]), nonceSize}}
	got := make([]byte, nonceSize)
	var r reader
	if err := r.read(pid, device.Bytes(got), src[:], 0, nonceSize); err != nil {
		return err
	}
	if !bytes.Equal(got, nonce) {
		return notThePeer(pid, "its memory does not contain the peer's nonce")
	}
	return nil
}

// processOf returns the id of the process that offer names. The error matches channel.ErrProtocol if
// offer is malformed.
func processOf(offer []byte) (int, error) {
	if len(offer) != offerSize {
		return 0, protocolError("an offer of %d bytes, want %d", len(offer), offerSize)
	}
	pid := binary.LittleEndian.Uint32(offer)
	if !isProcess(pid) {
		return 0, protocolError("an offer of process %d", pid)
	}
	return int(pid), nil
}

// checkNonce returns an error if the peer, which claims to be process pid, cannot have created nonce.
// If pid is this process, this process must have created nonce. If pid is another process, this process
// must not have created nonce: the peer would have copied it. If shown, the offer that this end has
// sent, is not nil, nonce must respond to it.
func checkNonce(pid int, nonce, shown []byte) error {
	ours := bytes.Equal(nonce[nonceHalf:], processMAC(nonce[:nonceHalf]))
	switch {
	case pid == os.Getpid() && !ours:
		return notThePeer(pid, "it is this process, which has not created the nonce")
	case pid != os.Getpid() && ours:
		return notThePeer(pid, "this process has created the nonce")
	case shown != nil && !bytes.Equal(nonce[:nonceHalf], responseTo(shown)):
		return notThePeer(pid, "the nonce is no response to the offer of this end")
	}
	return nil
}

func notThePeer(pid int, why string) error {
	return fmt.Errorf("process %d here is not the peer: %s", pid, why)
}

// isProcess reports whether a number can be a process id. 0 and negative numbers have other meanings in
// system calls.
func isProcess(pid uint32) bool { return pid > 0 && pid <= math.MaxInt32 }

// processKey returns a random secret of this process, the same in each call.
var processKey = sync.OnceValue(func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // does not fail
	return key
})

// processMAC returns the second half of a nonce: a MAC of half, its first half, that only this process
// can compute.
func processMAC(half []byte) []byte {
	h := hmac.New(sha256.New, processKey())
	_, _ = h.Write(half) // does not fail
	return h.Sum(nil)[:nonceHalf]
}

// peerProcess returns the one process whose memory this end may read: the one that was probed, or else
// the one that the kernel reports for the connection. It returns 0 if neither is known; then the first
// description names the process. If the two differ, or the offer is malformed, the error matches
// channel.ErrProtocol.
func peerProcess(link channel.Link) (int, error) {
	known := identified(link)
	if link.Offer == nil {
		return known, nil
	}
	tried, err := processOf(link.Offer)
	if err == nil && known != 0 && known != tried {
		err = protocolError("an offer of process %d by process %d", tried, known)
	}
	return tried, err
}

// identified returns the id of the process that the kernel reports for the peer, or 0 if the transport
// does not know it.
func identified(link channel.Link) int {
	first := link.First
	if first == nil {
		first = link.Conns[0]
	}
	if process := transport.IdentityOf(first).Process; process != nil {
		return process.PID
	}
	return 0
}
