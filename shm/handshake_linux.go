package shm

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// handshake is a connection that comes about. What it has opened it closes, or
// leaves to the conn.
type handshake struct {
	transport *Transport
	dialled   bool // by this end
	socket    *net.UnixConn
	reactor   *reactor
	mine      memory // the inbox of this end
	theirs    memory // of the peer, and so the outbox
	posts     memory // the reactor of the peer
	in, out   bell
	greeting  greeting // with the tokens of this end
	tokens    [2]uint32
	peer      transport.Identity
}

func newHandshake(t *Transport, socket *net.UnixConn) *handshake {
	return &handshake{transport: t, socket: socket, in: newBell(), out: newBell()}
}

// identify asks who the peer is, and whether it may connect.
func (h *handshake) identify() (err error) {
	if h.peer, err = identify(h.socket); err != nil {
		return err
	}
	return h.transport.admits(h.peer)
}

// meet is what the listening end does before it says anything. For a peer that has
// given up meanwhile it sets no memory aside.
func (h *handshake) meet() error {
	for _, part := range []func() error{h.identify, h.take, h.present, h.prepare, h.complete} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// share makes this end's memory and sends it to the peer.
func (h *handshake) share() error {
	if err := h.prepare(); err != nil {
		return err
	}
	return h.greet()
}

// prepare makes what this end shares, which takes its time.
func (h *handshake) prepare() (err error) {
	if h.reactor, err = h.transport.reactors.acquire(); err != nil {
		return err
	}
	h.greeting.inToken, h.greeting.outToken = h.reactor.register(h.in), h.reactor.register(h.out)
	if h.mine, err = createInbox(); err != nil {
		return err
	}
	if !h.transport.tokensOnly {
		h.mine.word().Store(doorbells)
	}
	h.greeting.files = [passed]*os.File{
		h.reactor.memory.header.File(), h.reactor.memory.data.File(),
		h.mine.header.File(), h.mine.data.File(),
	}
	return nil
}

// greet sends it to the peer. Nothing was sent before, so there is room for it, and
// it waits for nobody.
func (h *handshake) greet() error {
	if err := h.greeting.send(h.socket); err != nil {
		return err
	}
	return h.mine.closeFiles()
}

// present fails where the dialling end is not there any more.
func (h *handshake) present() error {
	raw, err := h.socket.SyscallConn()
	if err != nil {
		return err
	}
	gone := false
	if err := raw.Control(func(fd uintptr) { gone = hungUp(int(fd)) }); err != nil {
		return err
	}
	if gone {
		return fmt.Errorf("the dialling end has given up: %w", io.ErrUnexpectedEOF)
	}
	return nil
}

// take maps what the peer shares.
func (h *handshake) take() error {
	g, err := receive(h.socket)
	if err != nil {
		return err
	}
	defer g.close()
	h.tokens = [2]uint32{g.inToken, g.outToken}
	if h.posts, err = open(g.files[0], g.files[1]); err != nil {
		return err
	}
	if h.posts.ring.Size()%tokenSize != 0 {
		return protocolError("a ring of %d bytes for tokens", h.posts.ring.Size())
	}
	h.theirs, err = open(g.files[2], g.files[3])
	return err
}

// complete has all pages of this end's inbox set aside for a peer that does not know
// how to, once both ends have their memory.
func (h *handshake) complete() error {
	if h.rings() {
		return nil
	}
	return h.mine.complete()
}

// rings reports whether the peer rings doorbells, and can be rung.
func (h *handshake) rings() bool {
	return !h.transport.tokensOnly && h.theirs.sealed() && h.theirs.word().Load()&markBits == doorbells
}

// undo closes what a failed handshake has opened.
func (h *handshake) undo() {
	h.socket.Close()
	h.mine.close()
	h.theirs.close()
	h.posts.close()
	if h.reactor != nil {
		h.reactor.unregister(h.greeting.inToken)
		h.reactor.unregister(h.greeting.outToken)
		h.transport.reactors.release(h.reactor)
	}
}
