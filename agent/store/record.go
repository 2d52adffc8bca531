package store

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// A file begins with fileMagic. Records follow: the length of the body, its CRC-32C
// and that of these eight bytes, each a uint32; then the body, which is a kind, the
// length of the key as uint32, the key, and the value. Numbers are little endian.
// Only the last record may be incomplete, and then whoever wrote it was killed: the
// next who writes puts his own in its place.
const (
	fileMagic    = "tpstore\x01"
	recordHeader = 12
	bodyHeader   = 5
)

const (
	recordSet    = 1
	recordDelete = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one change of a key.
type record struct {
	kind  byte
	key   string
	value []byte
}

func (r record) append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, recordHeader)...)
	dst = append(dst, r.kind)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(r.key)))
	dst = append(append(dst, r.key...), r.value...)
	head, body := dst[start:start+recordHeader], dst[start+recordHeader:]
	binary.LittleEndian.PutUint32(head, uint32(len(body)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(body, castagnoli))
	binary.LittleEndian.PutUint32(head[8:], crc32.Checksum(head[:8], castagnoli))
	return dst
}

// scanner reads the records of a part of a file.
type scanner struct {
	r    *bufio.Reader
	left int64 // bytes of the part that were not read yet
}

// next returns the next record and its size. The error is io.EOF where the rest,
// if any, is an incomplete record.
func (s *scanner) next() (r record, size int64, err error) {
	if s.left < recordHeader {
		return record{}, 0, io.EOF
	}
	var head [recordHeader]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return record{}, 0, cut(err)
	}
	if binary.LittleEndian.Uint32(head[8:]) != crc32.Checksum(head[:8], castagnoli) {
		return record{}, 0, fmt.Errorf("%w: wrong checksum of a length", ErrCorrupt)
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	if s.left-recordHeader < length {
		return record{}, 0, io.EOF
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(s.r, body); err != nil {
		return record{}, 0, cut(err)
	}
	if binary.LittleEndian.Uint32(head[4:]) != crc32.Checksum(body, castagnoli) {
		return record{}, 0, fmt.Errorf("%w: wrong checksum", ErrCorrupt)
	}
	s.left -= recordHeader + length
	r, err = parse(body)
	return r, recordHeader + length, err
}

func parse(body []byte) (record, error) {
	if len(body) < bodyHeader {
		return record{}, fmt.Errorf("%w: a record of %d bytes", ErrCorrupt, len(body))
	}
	kind, n, rest := body[0], binary.LittleEndian.Uint32(body[1:]), body[bodyHeader:]
	if kind != recordSet && kind != recordDelete || uint64(n) > uint64(len(rest)) {
		return record{}, fmt.Errorf("%w: a record of kind %d with a key of %d bytes", ErrCorrupt, kind, n)
	}
	return record{kind: kind, key: string(rest[:n]), value: rest[n:]}, nil
}
