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
// nonce. The address is that of the nonce in the returned slice: the caller must neither change the
// slice nor let it become unreachable until the peer has read it. The first half of the nonce is
// random if theirs, the peer's offer, is nil; otherwise it is a hash of theirs, so that the peer
// can check that the offer was made for it. The second half is a MAC by which this process
// recognizes its own nonces. Offer does not retain theirs.
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

// responseTo returns a hash of offer. An end that has received offer uses it as the first half of
// its own nonce.
func responseTo(offer []byte) []byte {
	sum := sha256.Sum256(offer)
	return sum[:nonceHalf]
}

// Probe implements [channel.Prober]. It reads the nonce from the memory of the process that offer
// names, and returns nil if the nonce equals the one in offer. The error is a [*ReadError] if the
// memory cannot be read, and matches channel.ErrProtocol if offer is malformed. Probe returns
// another error if the process is not the peer, or if shown, the offer that this end sent first, is
// not nil and the nonce does not respond to it.
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

// processOf returns the process id in offer. The error matches channel.ErrProtocol: offer has the
// wrong size, or the number in it is no process id.
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

// checkNonce returns an error if the peer, which claims to be process pid, cannot have created
// nonce, and otherwise nil. If pid is this process, this process must have created nonce. If pid is
// another process, this process must not have created nonce, or the peer has copied it. If shown,
// the offer that this end sent first, is not nil, the first half of nonce must be the hash of
// shown.
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

// isProcess reports whether pid can be a process id: it is neither 0 nor negative as an int32. Such
// numbers have other meanings in system calls.
func isProcess(pid uint32) bool { return pid > 0 && pid <= math.MaxInt32 }

// processKey returns a random secret of this process, the same in each call.
var processKey = sync.OnceValue(func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // does not fail
	return key
})

// processMAC returns a MAC of half, the first half of a nonce, that only this process can compute.
// It is the second half of the nonce.
func processMAC(half []byte) []byte {
	h := hmac.New(sha256.New, processKey())
	_, _ = h.Write(half) // does not fail
	return h.Sum(nil)[:nonceHalf]
}

// peerProcess returns the id of the one process whose memory this end may read: the process that
// link.Offer names, or, if link.Offer is nil, the one that the kernel reports for the connection.
// It returns 0 and no error if the process is not known; the peer's first description or
// announcement then names it. The error matches channel.ErrProtocol: link.Offer is malformed, or
// names another process than the kernel reports. The id must not be used then.
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

// identified returns the process id of the peer as the kernel reports it for link.First, or for
// link.Conns[0] if link.First is nil. It returns 0 if the transport does not know the process.
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
