package cma

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// An offer is the process, the address of a nonce in it, and that nonce, which lies
// in the very memory of the offer. The nonce has two halves. Each is enough that no
// two processes have the same by chance.
const (
	nonceAt   = 4 + 8
	nonceSize = 2 * nonceHalf
	nonceHalf = 8
	offerSize = nonceAt + nonceSize
)

// Offer lays out some bytes and says where the peer finds them, if it can read this
// process. The first half is random, or made from what the peer has shown: who only
// gives another process's bytes for its own has not seen that. By the second half
// this process knows its own nonces.
func (f *Factory) Offer(theirs []byte) []byte {
	out := make([]byte, offerSize)
	nonce := out[nonceAt:]
	binary.LittleEndian.PutUint32(out, uint32(os.Getpid()))
	binary.LittleEndian.PutUint64(out[4:], segmentOf(nonce).address)
	if theirs == nil {
		_, _ = rand.Read(nonce[:nonceHalf]) // does not fail
	} else {
		copy(nonce, answerTo(theirs))
	}
	copy(nonce[nonceHalf:], mark(nonce[:nonceHalf]))
	return out
}

// answerTo is the first half of a nonce that is laid out for a peer which has shown
// something.
func answerTo(offer []byte) []byte {
	sum := sha256.Sum256(offer)
	return sum[:nonceHalf]
}

// Probe reads what the peer laid out. The error is a [*ReadError] where that is
// refused.
func (f *Factory) Probe(offer, shown []byte) error {
	pid, err := processOf(offer)
	if err != nil {
		return err
	}
	nonce := offer[nonceAt:]
	if err := doubt(pid, nonce, shown); err != nil {
		return err
	}
	src := [1]segment{{binary.LittleEndian.Uint64(offer[4:]), nonceSize}}
	got := make([]byte, nonceSize)
	var r reader
	if err := r.read(pid, device.Bytes(got), src[:], 0, nonceSize); err != nil {
		return err
	}
	if !bytes.Equal(got, nonce) {
		return notThePeer(pid, "it does not hold what the peer laid out")
	}
	return nil
}

// processOf is the process that an offer names.
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

// doubt says why a nonce is not the peer's own, whatever lies at its address. A peer
// may be in this process, but then it has a nonce of this process, and not the one
// that it was shown: else it would have this process read itself.
func doubt(pid int, nonce, shown []byte) error {
	ours := bytes.Equal(nonce[nonceHalf:], mark(nonce[:nonceHalf]))
	switch {
	case pid == os.Getpid() && !ours:
		return notThePeer(pid, "it is this one, which has not laid that out")
	case pid != os.Getpid() && ours:
		return notThePeer(pid, "this process laid that out")
	case shown != nil && !bytes.Equal(nonce[:nonceHalf], answerTo(shown)):
		return notThePeer(pid, "what was laid out there is no answer to what this end has shown")
	}
	return nil
}

func notThePeer(pid int, why string) error {
	return fmt.Errorf("process %d here is not the peer: %s", pid, why)
}

// isProcess reports whether a number can be that of a process: to the system 0
// and negative numbers mean other things.
func isProcess(pid uint32) bool { return pid > 0 && pid <= math.MaxInt32 }
