// Package capture reads recordings of two TensorPipe processes that communicate over TCP. Tests decode
// them or play one of the two ends; no product code uses them.
//
// A recording was made by a proxy in front of the server's listeners. This package divides the recorded
// bytes into frames, as the transport uv does: a length of 8 bytes, little-endian, followed by that
// many bytes. The address in a server's answer is the one at which it listens, not the proxy's.
package capture

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
)

// Direction is the direction of recorded bytes.
type Direction string

// The directions, as recordings spell them. The client is the process that dialled.
const (
	ToServer Direction = "C>S"
	ToClient Direction = "S>C"
)

// Capture is a recording of the bytes that two processes have exchanged on all connections between
// them.
type Capture struct {
	// Listeners are the addresses of the server's listeners. The pipe was opened at the first; the
	// others belong to channels.
	Listeners []string

	// Connections are in the order in which the server accepted them.
	Connections []Connection

	// Events are the same frames in the order in which they passed the proxy, and the end of each
	// stream. A frame passes with its last byte. The order between connections is partly random.
	Events []Event
}

// Connection is one connection of a recording with all its frames.
type Connection struct {
	Listener int // index in Listeners
	ToServer [][]byte
	ToClient [][]byte
}

// Event is a frame, or the end of a stream.
type Event struct {
	Conn  int // index in Connections
	Dir   Direction
	Frame []byte // without its length
	End   bool   // nothing more follows in this direction; Frame is nil
}

// Load reads the recording in the file at path. The error is that of reading the file or, with the
// path, that of Parse.
func Load(path string) (*Capture, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("capture: %s: %w", path, err)
	}
	return c, nil
}

// Parse decodes text, the JSON of a recording, and returns the recording with the bytes divided
// into frames. The JSON has the addresses of the listeners, and a log whose entries are time,
// listener, connection, direction and bytes in hexadecimal; an entry without bytes is the end of a
// stream. Parse returns an error if text is malformed or a stream ends within a frame. The result
// does not alias text.
func Parse(text []byte) (*Capture, error) {
	var file struct {
		Addrs []string
		Log   []chunk
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	b := builder{capture: &Capture{Listeners: file.Addrs}, rest: map[stream][]byte{}}
	for i, c := range file.Log {
		if err := b.add(c); err != nil {
			return nil, fmt.Errorf("log entry %d: %w", i, err)
		}
	}
	for s, rest := range b.rest {
		if len(rest) > 0 {
			return nil, fmt.Errorf("connection %d %s: %d bytes are no frame", s.conn, s.dir, len(rest))
		}
	}
	return b.capture, nil
}

// chunk is one entry of a log.
type chunk struct {
	seconds        float64
	listener, conn int
	dir            Direction
	bytes          string
}

// UnmarshalJSON implements json.Unmarshaler: it sets *c from p, an array of five fields. It returns
// an error if a field has the wrong type or the number of fields is not five.
func (c *chunk) UnmarshalJSON(p []byte) error {
	fields := []any{&c.seconds, &c.listener, &c.conn, &c.dir, &c.bytes}
	if err := json.Unmarshal(p, &fields); err != nil {
		return err
	}
	if len(fields) != 5 {
		return fmt.Errorf("%d fields, want 5", len(fields))
	}
	return nil
}

// stream is one direction of one connection.
type stream struct {
	conn int
	dir  Direction
}

// builder divides chunks into frames. rest holds the bytes of each stream that do not form a whole
// frame yet.
type builder struct {
	capture *Capture
	rest    map[stream][]byte
}

func (b *builder) add(c chunk) error {
	p, err := hex.DecodeString(c.bytes)
	if err != nil {
		return err
	}
	if err := b.admit(c); err != nil {
		return err
	}
	if len(p) == 0 {
		b.capture.Events = append(b.capture.Events, Event{Conn: c.conn, Dir: c.dir, End: true})
		return nil
	}
	s := stream{c.conn, c.dir}
	frames, rest := split(append(b.rest[s], p...))
	b.rest[s] = rest
	for _, f := range frames {
		b.pass(s, f)
	}
	return nil
}

// admit returns an error if the direction, the listener or the connection of c is invalid.
// Otherwise it makes sure that the recording has the connection, and sets the connection's
// listener. Connections need not appear in the order of their numbers.
func (b *builder) admit(c chunk) error {
	switch {
	case c.dir != ToServer && c.dir != ToClient:
		return fmt.Errorf("direction %q", c.dir)
	case c.listener < 0 || c.listener >= len(b.capture.Listeners):
		return fmt.Errorf("listener %d of %d", c.listener, len(b.capture.Listeners))
	case c.conn < 0 || c.conn > 1000:
		return fmt.Errorf("connection %d", c.conn)
	}
	for len(b.capture.Connections) <= c.conn {
		b.capture.Connections = append(b.capture.Connections, Connection{})
	}
	b.capture.Connections[c.conn].Listener = c.listener
	return nil
}

func (b *builder) pass(s stream, frame []byte) {
	conn := &b.capture.Connections[s.conn]
	if s.dir == ToServer {
		conn.ToServer = append(conn.ToServer, frame)
	} else {
		conn.ToClient = append(conn.ToClient, frame)
	}
	b.capture.Events = append(b.capture.Events, Event{Conn: s.conn, Dir: s.dir, Frame: frame})
}

// split divides p, bytes of a stream, into frames without their lengths, and the remaining bytes,
// which are not a whole frame. The results are slices of p.
func split(p []byte) (frames [][]byte, rest []byte) {
	for len(p) >= 8 {
		size := binary.LittleEndian.Uint64(p)
		if size > uint64(len(p)-8) {
			break
		}
		end := 8 + int(size)
		frames = append(frames, p[8:end:end])
		p = p[end:]
	}
	return frames, p
}
