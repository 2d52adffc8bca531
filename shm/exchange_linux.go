package shm

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
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

// errRefused is what stands for a greeting of a peer that turns this end away.
var errRefused = errors.New("the peer refuses")

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
	if string(tokens[:n]) == refusing && oobn == 0 {
		return greeting{}, errRefused
	}
	files, err := segment.Received(rights[:oobn], flags, passed)
	if errors.Is(err, segment.ErrFile) {
		err = protocolError("the greeting: %w", err)
	}
	if err != nil {
		return greeting{}, err
	}
	g := greeting{
		inToken:  binary.NativeEndian.Uint32(tokens[:]),
		outToken: binary.NativeEndian.Uint32(tokens[4:]),
		files:    [passed]*os.File(files),
	}
	if n != tokenBytes {
		g.close()
		return greeting{}, protocolError("the greeting has %d bytes, not %d", n, tokenBytes)
	}
	return g, nil
}
