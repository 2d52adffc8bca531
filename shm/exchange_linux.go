package shm

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// What each end says once over the socket: two tokens, and the descriptors of
// its reactor's ring and of its inbox, of each the header and the data.
const (
	tokenBytes = 8
	passed     = 4
)

// greeting is that message.
type greeting struct {
	inToken, outToken uint32 // to leave when the inbox got bytes, when the outbox got room
	files             [passed]*os.File
}

func (g greeting) send(socket *net.UnixConn) error {
	var tokens [tokenBytes]byte
	binary.NativeEndian.PutUint32(tokens[:], g.inToken)
	binary.NativeEndian.PutUint32(tokens[4:], g.outToken)
	var fds [passed]int
	for i, f := range g.files {
		fds[i] = int(f.Fd())
	}
	rights := unix.UnixRights(fds[:]...)
	step.Here()
	n, _, err := socket.WriteMsgUnix(tokens[:], rights, nil)
	runtime.KeepAlive(g)
	if err == nil && n < tokenBytes {
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

// receive takes the peer's greeting, which comes in one piece. The descriptors
// must be closed.
func receive(socket *net.UnixConn) (greeting, error) {
	var tokens [tokenBytes]byte
	rights := make([]byte, unix.CmsgSpace(passed*4))
	n, oobn, flags, _, err := socket.ReadMsgUnix(tokens[:], rights)
	step.Here()
	if err == nil && n == 0 && oobn == 0 {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return greeting{}, err
	}
	files, err := parseRights(rights[:oobn])
	g := greeting{
		inToken:  binary.NativeEndian.Uint32(tokens[:]),
		outToken: binary.NativeEndian.Uint32(tokens[4:]),
	}
	copy(g.files[:], files)
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0:
		err = protocolError("more than %d descriptors came, or this process has no room for them", passed)
	case n != tokenBytes || len(files) != passed:
		err = protocolError("the greeting has %d bytes and %d descriptors, not %d and %d", n, len(files), tokenBytes, passed)
	}
	if err != nil {
		g.close()
		return greeting{}, err
	}
	return g, nil
}

// parseRights returns the descriptors that came, at most as many as there is
// room for in a control message of that size.
func parseRights(control []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, protocolError("a bad control message: %w", err)
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // of another kind
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "shared memory"))
		}
	}
	return files, nil
}
