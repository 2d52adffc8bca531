package uv

import (
	"errors"
	"net"
	"os"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// tlsStream is the stream below a session on a connection over TLS. Closing it closes the
// connection.
type tlsStream struct {
	end
	secure *tlsConn
}

// Write encrypts and sends p, and returns the number of bytes of p that were sent. It blocks until
// all are sent, the write deadline passes, or the stream fails. After an error all writes fail,
// because an incomplete record cannot be completed. The error is ErrClosed after CloseWrite or
// Close, and otherwise that of crypto/tls, as writeError describes. p is not kept.
func (s *tlsStream) Write(p []byte) (int, error) {
	c := s.secure
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.finished.Load() {
		return 0, transport.ErrClosed
	}
	n, err := c.tls.Write(p)
	c.broken = c.broken || err != nil
	return n, c.writeError(err)
}

// TryWrite writes nothing and returns 0 and nil: crypto/tls cannot write without blocking, because
// it cannot continue a record that the socket has accepted in part.
func (s *tlsStream) TryWrite(...[]byte) (int, error) { return 0, nil }

func (s *tlsStream) CloseWrite() error { return s.secure.CloseWrite() }
func (s *tlsStream) Close() error      { return s.secure.Close() }

// tlsRawStream implements transport.Stream and transport.Gatherer on a connection over TLS. It
// encrypts one record at a time. If a write deadline passes, the socket keeps the rest of the last
// record, which the next write sends first.
type tlsRawStream struct {
	*tlsStream
	record []byte    // gathers small pieces; guarded by tlsConn.writing
	single [1][]byte // argument of Write, likewise
}

var _ transport.Gatherer = (*tlsRawStream)(nil)

// Write encrypts and sends p, and returns the number of bytes of p that were encrypted. It blocks
// until all are sent, the write deadline passes, or the stream fails. After a deadline the next
// write sends the encrypted bytes that are left. The error is that of WriteBuffers. p is not kept.
func (s *tlsRawStream) Write(p []byte) (int, error) {
	s.secure.writing.Lock()
	defer s.secure.writing.Unlock()
	s.single[0] = p
	pieces := net.Buffers(s.single[:])
	n, err := s.writeRecords(&pieces)
	s.single[0] = nil
	return int(n), err
}

// WriteBuffers encrypts and sends pieces in order, in records of up to 16 KiB, and returns the
// number of bytes encrypted. It blocks until all are sent, the write deadline passes, or the stream
// fails. It removes the encrypted bytes from pieces, and keeps none of their memory. After a
// deadline the next call sends the encrypted bytes that are left, also if pieces is empty then. The
// error is ErrClosed after CloseWrite or Close, and otherwise that of the socket or of crypto/tls,
// as writeError describes.
func (s *tlsRawStream) WriteBuffers(pieces *net.Buffers) (int64, error) {
	s.secure.writing.Lock()
	defer s.secure.writing.Unlock()
	return s.writeRecords(pieces)
}

// writeRecords encrypts and sends pieces in records of up to 16 KiB, and returns the number of
// bytes encrypted. It removes these from pieces. It blocks until all are sent, the write deadline
// passes, or the stream fails. The errors are those of WriteBuffers. The caller holds
// tlsConn.writing.
func (s *tlsRawStream) writeRecords(pieces *net.Buffers) (total int64, err error) {
	c := s.secure
	if c.finished.Load() {
		return 0, transport.ErrClosed
	}
	_, err = c.tcp.Write(nil) // fails if the deadline has passed, before anything is encrypted
	for err == nil {
		failpoint.Here()
		if err = c.socket.sendRest(); err != nil || len(*pieces) == 0 {
			break
		}
		record := s.nextRecord(*pieces)
		if _, err = c.tls.Write(record); err == nil {
			total += int64(len(record))
			*pieces = skip(*pieces, len(record))
		}
	}
	if err != nil && (!errors.Is(err, os.ErrDeadlineExceeded) || c.finished.Load()) {
		c.broken = true // and the peer finds the connection cut off
	}
	return total, c.writeError(err)
}

// nextRecord returns the bytes of the next record: the first recordSize bytes of pieces, or all if
// there are fewer. If the first piece has that many bytes, the result is a part of it, and otherwise
// it is a copy in s.record. pieces must not be empty.
func (s *tlsRawStream) nextRecord(pieces [][]byte) []byte {
	if len(pieces[0]) >= recordSize || len(pieces) == 1 {
		return pieces[0][:min(len(pieces[0]), recordSize)]
	}
	if s.record == nil {
		s.record = make([]byte, 0, recordSize)
	}
	s.record = s.record[:0]
	for _, p := range pieces {
		s.record = append(s.record, p[:min(len(p), recordSize-len(s.record))]...)
		if len(s.record) == recordSize {
			break
		}
	}
	return s.record
}

// skip removes the first n bytes of pieces, which must have as many, and all empty pieces that
// follow them, and returns the rest, which has the memory of pieces.
func skip(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 && n >= len(pieces[0]) {
		n -= len(pieces[0])
		pieces[0] = nil
		pieces = pieces[1:]
	}
	if n > 0 {
		pieces[0] = pieces[0][n:]
	}
	return pieces
}
