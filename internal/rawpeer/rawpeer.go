// Package rawpeer opens native pipes over TCP by hand, for tests of peers that send part
// of something and stop. A peer has no buffers that would count in a measurement of the
// process that it attacks.
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

// The frames of yamux, and what a stream may send at first.
const (
	data         = 0
	windowUpdate = 1
	open         = 1 // flag
	firstWindow  = 256 << 10
)

// The streams of a session: messages, control, and that of the channel basic.
const messageStream, controlStream, channelStream = 1, 3, 5

// Peer is the dialling end of a native pipe with the channel basic.
type Peer struct {
	conn   net.Conn
	credit chan int // bytes that the other end allows on the message stream
	done   sync.WaitGroup
}

// Dial opens a pipe to a URL of the transport uv. The caller closes the Peer.
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
	p.done.Go(p.listen)
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
		if _, err := p.conn.Write([]byte{0, windowUpdate, 0, open, 0, 0, 0, stream, 0, 0, 0, 0}); err != nil {
			return err
		}
	}
	return nil
}

// listen reads until the other end hangs up, and queues its window updates.
func (p *Peer) listen() {
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

// Message returns the bytes of a message with n bytes of metadata, for Send. Peers may
// share them.
func Message(n int) []byte { return (&native.Message{Metadata: make([]byte, n)}).Append(nil, false) }

// Send sends bytes of messages as the other end allows it. It returns when all are sent or
// the other end has hung up. It is called once.
func (p *Peer) Send(text []byte) {
	for credit := range p.credit {
		for credit > 0 && len(text) > 0 {
			n := min(credit, len(text), 64<<10)
			header := binary.BigEndian.AppendUint32([]byte{0, data, 0, 0, 0, 0, 0, messageStream}, uint32(n))
			if _, err := p.conn.Write(append(header, text[:n]...)); err != nil {
				return
			}
			credit -= n
			text = text[n:]
		}
		if len(text) == 0 {
			return
		}
	}
}

// Close hangs up.
func (p *Peer) Close() {
	_ = p.conn.Close() // the other end may have done so
	go func() {
		for range p.credit { // which listen may wait to send
		}
	}()
	p.done.Wait()
}
