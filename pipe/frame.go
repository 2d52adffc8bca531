package pipe

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// growStep is how far memory for a frame runs ahead of its bytes: a peer that
// claims much and sends little costs no more than this.
const growStep = 64 << 10

// readFrame reads one whole frame of at most limit bytes into buf's memory, or
// more of it. held counts that memory; nil counts nothing.
func readFrame(c transport.Conn, buf []byte, limit int, held *charge) ([]byte, error) {
	size, err := c.NextFrame()
	if err != nil {
		return nil, err
	}
	if size > int64(limit) {
		return nil, protocolError("%w", limitError("frame", uint64(size), uint64(limit)))
	}
	return readBody(c, buf, int(size), held)
}

// readBody reads the size bytes of an announced frame.
func readBody(c transport.Conn, buf []byte, size int, held *charge) ([]byte, error) {
	buf = buf[:0]
	for len(buf) < size {
		step := min(size-len(buf), max(growStep, len(buf), cap(buf)-len(buf)))
		start := len(buf)
		if err := held.grow(max(start+step, cap(buf))); err != nil {
			return nil, err
		}
		if cap(buf) < start+step {
			buf = append(make([]byte, 0, start+step), buf...)
		}
		buf = buf[:start+step]
		if err := c.ReadBody(buf[start:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// expectFrame reads the header of a frame that must have size bytes.
func expectFrame(c transport.Conn, size int) error {
	got, err := c.NextFrame()
	if err == nil && got != int64(size) {
		return protocolError("frame of %d bytes where the descriptor says %d", got, size)
	}
	return err
}

// link is a connection of a pipe and its name within the pipe.
type link struct {
	transport.Conn
	name string
}

func channelConnName(channel string, i int) string { return fmt.Sprintf("channel %s %d", channel, i) }
