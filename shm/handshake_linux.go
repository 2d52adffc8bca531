package shm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// handshake is a connection that is being opened. It owns the socket, the memory and the use of the
// reactor that it has acquired, until newConn takes them over or abort releases them.
type handshake struct {
	transport         *Transport
	dialled           bool // this end has dialled
	socket            *net.UnixConn
	reactor           *reactor
	ownInbox          memory // the inbox of this end
	peerInbox         memory // that of the peer, to which this end writes
	peerReactorMemory memory // the ring of the peer's reactor
	in, out           wakeup
	greeting          greeting // of this end
	triggers          [2]uint32
	peer              transport.Credentials
}

func newHandshake(t *Transport, socket *net.UnixConn) *handshake {
	return &handshake{transport: t, socket: socket, in: newWakeup(), out: newWakeup()}
}

// identify stores in h.peer the ids of the peer's process, user and group, which the kernel
// recorded when the socket was connected. The error matches ErrOtherUser if the transport does not
// allow that user; h.peer is set even then. Other errors are those of the function identify.
func (h *handshake) identify() (err error) {
	if h.peer, err = identify(h.socket); err != nil {
		return err
	}
	if own := os.Geteuid(); !h.transport.otherUsers && h.peer.UID != own {
		return fmt.Errorf("%w: uid %d, this one is %d", ErrOtherUser, h.peer.UID, own)
	}
	return nil
}

// accept performs the server's half of the handshake, except for sendGreeting, which the caller
// calls last. It checks the client's user, maps the client's memory and creates this end's, with
// all pages of the inbox for a C++ client. The error matches io.ErrUnexpectedEOF if accept fails
// because the client has closed the connection. After any error the caller calls h.abort.
func (h *handshake) accept() error {
	if err := h.identify(); err != nil {
		return err
	}
	if err := h.receiveMemory(); err != nil {
		return err
	}
	raw, err := h.socket.SyscallConn()
	if err != nil {
		return err
	}
	peerGone := false
	if err := raw.Control(func(fd uintptr) { peerGone = peerHungUp(int(fd)) }); err != nil {
		return err
	}
	if peerGone {
		return fmt.Errorf("the client has closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if err := h.createMemory(); err != nil {
		return err
	}
	return h.reserveInbox()
}

// share creates this end's memory (createMemory) and sends its descriptors to the peer
// (sendGreeting). After an error the caller calls h.abort.
func (h *handshake) share() error {
	if err := h.createMemory(); err != nil {
		return err
	}
	return h.sendGreeting()
}

// createMemory acquires the transport's reactor, registers this end's two triggers, creates the
// inbox, and fills in h.greeting. h owns all of that, also after an error. The call takes a while,
// mostly for reserving pages. The error is that of creating the reactor or the inbox.
func (h *handshake) createMemory() (err error) {
	if h.reactor, err = h.transport.reactors.acquire(); err != nil {
		return err
	}
	h.greeting.inTrigger, h.greeting.outTrigger = h.reactor.register(h.in), h.reactor.register(h.out)
	if h.ownInbox, err = createInbox(); err != nil {
		return err
	}
	if !h.transport.triggersOnly {
		h.ownInbox.marker().Store(doorbellMagic)
	}
	h.greeting.files = [greetingFiles]*os.File{
		h.reactor.memory.header.File(), h.reactor.memory.data.File(),
		h.ownInbox.header.File(), h.ownInbox.data.File(),
	}
	return nil
}

// sendGreeting sends h.greeting, which createMemory has filled in, and closes the inbox's
// descriptors; the inbox stays mapped. It does not block: the socket is empty. After an error the
// caller calls h.abort.
func (h *handshake) sendGreeting() error {
	if err := h.greeting.send(h.socket); err != nil {
		return err
	}
	return cmp.Or(h.ownInbox.header.CloseFile(), h.ownInbox.data.CloseFile())
}

// receiveMemory blocks until the peer's greeting arrives, stores the peer's triggers, and maps the
// peer's inbox and the ring of the peer's reactor. h owns both mappings, also after an error. The
// error is that of receiveGreeting, or matches ErrProtocol if the peer's memory is invalid, or is a
// *segment.Error if this system refuses to map it.
func (h *handshake) receiveMemory() error {
	g, err := receiveGreeting(h.socket)
	if err != nil {
		return err
	}
	defer g.close()
	h.triggers = [2]uint32{g.inTrigger, g.outTrigger}
	if h.peerReactorMemory, err = mapRing(g.files[0], g.files[1]); err != nil {
		return err
	}
	if h.peerReactorMemory.ring.Size()%triggerSize != 0 {
		return protocolError("a ring of %d bytes for triggers", h.peerReactorMemory.ring.Size())
	}
	h.peerInbox, err = mapRing(g.files[2], g.files[3])
	return err
}

// reserveInbox reserves all pages of this end's inbox if the peer is C++, which does not reserve
// them itself. For a peer of this package it does nothing. It is called after createMemory and
// receiveMemory. The error is that of reserving pages.
func (h *handshake) reserveInbox() error {
	if h.doorbells() {
		return nil
	}
	return h.ownInbox.reserveAll()
}

// doorbells reports whether the connection uses doorbells: the peer's inbox has the marker of this
// package, the peer cannot truncate that inbox, and doorbells are not disabled for the transport.
// receiveMemory must have succeeded.
func (h *handshake) doorbells() bool {
	return !h.transport.triggersOnly && h.peerInbox.sealed() && h.peerInbox.marker().Load()&markerMask == doorbellMagic
}

// abort closes the socket, unmaps the memory, and releases the triggers and the reactor, as far as
// the handshake has acquired them. It must not be called after newConn has succeeded.
func (h *handshake) abort() {
	h.socket.Close()
	h.ownInbox.close()
	h.peerInbox.close()
	h.peerReactorMemory.close()
	if h.reactor != nil {
		h.reactor.unregister(h.greeting.inTrigger)
		h.reactor.unregister(h.greeting.outTrigger)
		h.transport.reactors.release(h.reactor)
	}
}

// A greeting is the message that each end sends once over the socket: two triggers, and the
// descriptors of its reactor's ring and of its inbox, header and data of each.
const (
	greetingSize  = 8
	greetingFiles = 4
)

// greeting is the message by which each end of a handshake passes its memory and its triggers to
// the other end. The files of a greeting that is sent belong to segments. The files of a greeting
// that was received belong to the greeting, and close closes them.
type greeting struct {
	inTrigger, outTrigger uint32 // which the receiver sends after it has written to the inbox, or read from its own
	files                 [greetingFiles]*os.File
}

func (g greeting) send(socket *net.UnixConn) error {
	var triggers [greetingSize]byte
	binary.NativeEndian.PutUint32(triggers[:], g.inTrigger)
	binary.NativeEndian.PutUint32(triggers[4:], g.outTrigger)
	var fds [greetingFiles]int
	for i, f := range g.files {
		fds[i] = int(f.Fd())
	}
	rights := unix.UnixRights(fds[:]...)
	failpoint.Here()
	n, _, err := socket.WriteMsgUnix(triggers[:], rights, nil)
	runtime.KeepAlive(g)
	if err == nil && n < greetingSize {
		err = io.ErrShortWrite
	}
	return err
}

func (g greeting) close() {
	for _, f := range g.files {
		if f != nil {
			f.Close()
		}
	}
}

// errRejected is returned instead of a greeting if the peer sent a rejection.
var errRejected = errors.New("the peer rejected the handshake")

// receiveGreeting blocks until the peer's greeting arrives, which is one message. The caller closes
// the greeting. The error is errRejected if a rejection came instead, whose text the caller can
// then read from socket. It is io.ErrUnexpectedEOF at the end of the socket, and matches
// ErrProtocol if the message is no greeting. Otherwise it is that of reading the socket, or a
// *segment.Error if this process cannot receive the files.
func receiveGreeting(socket *net.UnixConn) (greeting, error) {
	var triggers [greetingSize]byte
	rights := make([]byte, unix.CmsgSpace(greetingFiles*4))
	n, oobn, flags, _, err := socket.ReadMsgUnix(triggers[:], rights)
	failpoint.Here()
	if err == nil && n == 0 && oobn == 0 {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return greeting{}, err
	}
	if string(triggers[:n]) == rejectPrefix && oobn == 0 {
		return greeting{}, errRejected
	}
	files, err := segment.Received(rights[:oobn], flags, greetingFiles)
	if errors.Is(err, segment.ErrFile) {
		err = protocolError("the greeting: %w", err)
	}
	if err != nil {
		return greeting{}, err
	}
	g := greeting{
		inTrigger:  binary.NativeEndian.Uint32(triggers[:]),
		outTrigger: binary.NativeEndian.Uint32(triggers[4:]),
		files:      [greetingFiles]*os.File(files),
	}
	if n != greetingSize {
		g.close()
		return greeting{}, protocolError("the greeting has %d bytes, not %d", n, greetingSize)
	}
	return g, nil
}

// rejectPrefix begins a rejection. It has the place of the triggers of a greeting and no
// descriptors; the reason follows.
const rejectPrefix = "refused:"

// maxReason is the largest length of a reason in bytes.
const maxReason = 512

// reject sends the client a rejection with the text of why, up to 512 bytes, instead of a greeting.
// It sends nothing in three cases: the client's memory is not mapped yet; the connection would not
// use doorbells, since a C++ client would take the text for a greeting; or why matches ErrProtocol.
// Errors are ignored: the client then sees the end of the socket.
func (h *handshake) reject(why error) {
	if h.peerInbox.ring == nil || !h.doorbells() || errors.Is(why, ErrProtocol) {
		return
	}
	text := why.Error()
	_, _ = h.socket.Write([]byte(rejectPrefix + text[:min(len(text), maxReason)]))
}

// identify returns the ids of the process, the user and the group at the other end of socket, which
// the kernel recorded when the socket was connected. The error is that of the system call, or means
// that socket is closed.
func identify(socket *net.UnixConn) (peer transport.Credentials, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return peer, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = os.NewSyscallError("getsockopt SO_PEERCRED", failed)
	}
	if err != nil {
		return peer, err
	}
	return transport.Credentials{PID: int(credentials.Pid), UID: int(credentials.Uid), GID: int(credentials.Gid)}, nil
}

// processName returns the address that stands for an end that dialled, whose socket has no name:
// "pid", a space and its process id.
func processName(pid int) string { return fmt.Sprintf("pid %d", pid) }
