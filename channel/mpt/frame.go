package mpt

import "github.com/tensorpipe-go/tensorpipe/transport"

// readFrame reads one frame of at most limit bytes, into buf if it fits.
func readFrame(conn transport.Conn, buf []byte, limit int64) ([]byte, error) {
	n, err := conn.NextFrame()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, protocolError("a frame of %d bytes, at most %d are expected", n, limit)
	}
	if n > int64(len(buf)) {
		buf = make([]byte, n)
	}
	return buf[:n], conn.ReadBody(buf[:n])
}
