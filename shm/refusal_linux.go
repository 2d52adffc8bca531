package shm

import (
	"errors"
	"fmt"
)

// refusing stands where the tokens of a greeting are, without any descriptors: what
// follows is why the listening end turns the peer away.
const refusing = "refused:"

// maxReason bounds what follows, in bytes.
const maxReason = 512

// turnAway tells a peer of ours why there will be no greeting, such as a limit that
// this process has reached. Others are told nothing, since they would take it for a
// greeting, and where it does not arrive the peer knows that much: it was turned away.
func (h *handshake) turnAway(why error) {
	if h.theirs.ring == nil || !h.rings() || errors.Is(why, ErrProtocol) {
		return
	}
	text := why.Error()
	_, _ = h.socket.Write([]byte(refusing + text[:min(len(text), maxReason)]))
}

// refusal is the error of a peer that turned this end away, and says why.
func (h *handshake) refusal() error {
	text := make([]byte, maxReason)
	n, err := h.socket.Read(text)
	if err != nil {
		return fmt.Errorf("the listening end refuses: %w", err)
	}
	return fmt.Errorf("the listening end refuses: %q", text[:n])
}
