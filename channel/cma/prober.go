package cma

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// nonceSize is enough that no two processes have the same by chance.
const nonceSize = 16

// offerSize is that of an offer: the process, the address of its nonce, and the
// nonce itself.
const offerSize = 4 + 8 + nonceSize

// nonce is what a process lays out for others to read.
type nonce [nonceSize]byte

func newNonce() *nonce {
	n := new(nonce)
	_, _ = rand.Read(n[:]) // does not fail
	return n
}

// Offer says where the peer finds which bytes in this process, if it can read it.
func (f *Factory) Offer() []byte {
	out := binary.LittleEndian.AppendUint32(make([]byte, 0, offerSize), uint32(os.Getpid()))
	out = binary.LittleEndian.AppendUint64(out, segmentOf(f.nonce[:]).address)
	return append(out, f.nonce[:]...)
}

// Probe reads what the peer laid out. The error is a [*ReadError] where that is
// refused.
func (f *Factory) Probe(offer []byte) error {
	if len(offer) != offerSize {
		return protocolError("an offer of %d bytes, want %d", len(offer), offerSize)
	}
	pid := binary.LittleEndian.Uint32(offer)
	src := [1]segment{{binary.LittleEndian.Uint64(offer[4:]), nonceSize}}
	if !isProcess(pid) {
		return protocolError("an offer of process %d", pid)
	}
	var got nonce
	var r reader
	if err := r.read(int(pid), device.Bytes(got[:]), src[:], 0, nonceSize); err != nil {
		return err
	}
	if !bytes.Equal(got[:], offer[12:]) {
		return fmt.Errorf("process %d here is not the peer: it does not hold what the peer laid out", pid)
	}
	return nil
}

// isProcess reports whether a number can be that of a process: to the system 0
// and negative numbers mean other things.
func isProcess(pid uint32) bool { return pid > 0 && pid <= math.MaxInt32 }
