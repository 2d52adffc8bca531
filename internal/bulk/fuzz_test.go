package bulk_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// FuzzReader receives arbitrary bytes for two transfers, and compares the outcome with that of a
// decoder that has all bytes at once.
func FuzzReader(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(chunk(0, 1, numbered(10), 0, true))
	f.Add(append(chunk(0, 1, numbered(4), 0, false), chunk(0, 1, numbered(6), 0, true)...))
	f.Add(append(chunk(0, 2, numbered(20), 0, false), chunk(0, 1, numbered(10), 1, false)...))
	f.Add(append(chunk(0, 9, numbered(700), 0, true), chunk(0, 1, numbered(10), 0, true)...))
	f.Add(append(chunk(0, 1, numbered(10), 0, true), chunk(0, 1, numbered(10), 0, true)...))
	f.Add(broken(chunk(0, 1, numbered(10), 0, true), 20, 0))
	f.Add(chunk(0, 1, numbered(11), 0, true))
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := net.Pipe()
		e := newEnd(t, plain{near}, bulk.Config{})
		ch := e.Lane(0)
		dst := map[uint64][]byte{1: make([]byte, 10), 2: make([]byte, 20)}
		outcomes := map[uint64]<-chan error{1: recv(ch, 1, dst[1]), 2: recv(ch, 2, dst[2])}
		written := testwait.Start(func() error { _, err := far.Write(data); far.Close(); return err })
		require.Error(t, e.wantBroken(t))
		require.NoError(t, e.Close(nil))
		_ = testwait.Finish(t, written)
		for id, want := range decode(data, map[uint64]int{1: 10, 2: 20}) {
			err := testwait.Finish(t, outcomes[id])
			require.Equal(t, want != nil, err == nil)
			if want != nil {
				require.Equal(t, want, dst[id])
			}
		}
	})
}

// decode decodes data, the chunks of a stream, and returns the bytes that the transfers on lane 0
// receive. sizes are the sizes of the transfers by id; decode removes those that end. A value of
// nil means that the transfer fails.
func decode(data []byte, sizes map[uint64]int) map[uint64][]byte {
	parts, over := map[uint64][]byte{}, map[uint64][]byte{}
	for id := range sizes {
		over[id] = nil
	}
	for len(data) >= headerSize {
		id, n := binary.LittleEndian.Uint64(data), int(binary.LittleEndian.Uint32(data[8:]))
		known := sizes[id] > 0 && data[12] == 0 && data[13] == 0
		if n == 0 || n > 1<<20 || data[14] > 1 || data[15] != 0 || known && len(parts[id])+n > sizes[id] || len(data) < headerSize+n+trailerSize {
			break
		}
		body, tail := data[headerSize:headerSize+n], data[headerSize+n:]
		status, sum := binary.LittleEndian.Uint32(tail), binary.LittleEndian.Uint32(tail[4:])
		want := uint32(0)
		if data[14] == 1 {
			want = crc32.Checksum(data[:headerSize+n], crc32.MakeTable(crc32.Castagnoli))
		}
		if status > 1 || known && status == 0 && sum != want {
			break
		}
		if known {
			parts[id] = append(parts[id], body...)
		}
		if known && (status == 1 || len(parts[id]) == sizes[id]) {
			if status == 0 {
				over[id] = bytes.Clone(parts[id])
			}
			delete(sizes, id)
		}
		data = tail[trailerSize:]
	}
	return over
}
