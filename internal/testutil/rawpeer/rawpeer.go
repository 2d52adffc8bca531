// Package rawpeer opens native pipes over TCP with hand-made frames, for tests of peers that send a
// part of a message and stop. A Peer has no large buffers that a measurement of this process's
// memory would count.
package rawpeer

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

// Frame types of yamux, the flag that opens a stream, and the initial window.
const (
	data         = 0
	windowUpdate = 1
	flagOpen     = 1
	firstWindow  = 256 << 10 // bytes
)

// The ids of the session's streams; channelStream is that of the channel basic.
const messageStream, controlStream, channelStream = 1, 3, 5

// Peer is the client of a native pipe with the channel basic, which sends hand-made frames and discards
// what it receives. The caller must close it.
type Peer struct {
	conn   net.Conn
	credit chan int // window updates of the message stream, in bytes
	done   sync.WaitGroup
}

// Dial connects to url, an address of the transport uv, opens a native pipe with the channel basic
// there, and returns the client of the pipe. The caller must close it. The error is that of the
// connection.
func Dial(url string) (*Peer, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "uv://"))
	if err != nil {
		return nil, err
	}
	p := &Peer{conn: conn, credit: make(chan int, 64)}
	if err := p.handshake(); err != nil {
		_ = conn.Close() // err is the cause
		return nil, err
	}
	p.done.Go(p.readFrames)
	return p, nil
}

func (p *Peer) handshake() error {
	hello := wire.SpontaneousConnection{ContextName: "by hand"}
	brochure := wire.Brochure{
		TransportDomainDescriptors: map[string]string{"uv": "uv:*"},
		ChannelDeviceDescriptors:   map[string]map[device.Device]string{"basic": {device.CPU(): "any"}},
	}
	brochure.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative, Features: wire.FeatureControl})
	for _, frame := range [][]byte{hello.Append(nil), brochure.Append(nil)} {
		if _, err := p.conn.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(frame))), frame...)); err != nil {
			return err
		}
	}
	var size [8]byte
	if _, err := io.ReadFull(p.conn, size[:]); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, p.conn, int64(binary.LittleEndian.Uint64(size[:]))); err != nil {
		return err
	}
	for _, stream := range []byte{messageStream, controlStream, channelStream} {
		if _, err := p.conn.Write([]byte{0, windowUpdate, 0, flagOpen, 0, 0, 0, stream, 0, 0, 0, 0}); err != nil {
			return err
		}
	}
	return nil
}

// readFrames reads frames until the connection ends. It discards data, sends the size of each
// window update of the message stream to p.credit, beginning with the initial window, and closes
// p.credit at the end. It blocks while p.credit is full.
func (p *Peer) readFrames() {
	defer close(p.credit)
	p.credit <- firstWindow
	var header [12]byte
	for {
		if _, err := io.ReadFull(p.conn, header[:]); err != nil {
			return
		}
		stream, length := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint32(header[8:])
		switch {
		case header[1] == data:
			if _, err := io.CopyN(io.Discard, p.conn, int64(length)); err != nil {
				return
			}
		case header[1] == windowUpdate && stream == messageStream:
			p.credit <- int(length)
		}
	}
}

// Message returns the encoding of a message with n zero bytes of metadata and no payloads or
// tensors, for Send. Send does not change it, so several peers may send the same slice.
func Message(n int) []byte { return (&native.Message{Metadata: make([]byte, n)}).Append(nil, false) }

// Send sends messages, the encodings of one or more messages, as fast as the server's window
// allows. It returns when all bytes are sent, or earlier, without an error, when the connection has
// ended. It neither changes nor retains messages. It must be called at most once, and not after
// Close.
func (p *Peer) Send(messages []byte) {
	for credit := range p.credit {
		for credit > 0 && len(messages) > 0 {
			n := min(credit, len(messages), 64<<10)
			header := binary.BigEndian.AppendUint32([]byte{0, data, 0, 0, 0, 0, 0, messageStream}, uint32(n))
			if _, err := p.conn.Write(append(header, messages[:n]...)); err != nil {
				return
			}
			credit -= n
			messages = messages[n:]
		}
		if len(messages) == 0 {
			return
		}
	}
}

// Close closes the connection and waits until the goroutine of the Peer has ended. A Send that is
// blocked returns. Close must be called once.
func (p *Peer) Close() {
	_ = p.conn.Close() // fails if the server has reset the connection
	go func() {
		for range p.credit { // readFrames may be blocked in a send
		}
	}()
	p.done.Wait()
}
