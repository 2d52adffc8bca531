package filetransfer

import (
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// script is a sender that violates the protocol.
type script struct {
	t    *testing.T
	pipe *pipe.Pipe
	file []byte // two tensors of 5 and 7 bytes
}

// write sends m and ignores the error, because the receiver may have closed the pipe.
func (s *script) write(m *pipe.Message) { _ = s.pipe.Write(s.t.Context(), m) }

func (s *script) encode(word any) *pipe.Message {
	m, err := encode(word)
	require.NoError(s.t, err)
	return m
}

// offers sends an offer of files and waits for the answer, which must be that the offer is
// accepted.
func (s *script) offers(files ...fileOffer) {
	s.write(s.encode(senderMessage{Offer: &offer{Version: version, Files: files}}))
	a, err := nextAnswer(s.t.Context(), s.pipe)
	require.NoError(s.t, err)
	require.True(s.t, a.Accepted)
}

func (s *script) offersTwo() {
	s.offers(fileOffer{"a.safetensors", len(s.file)}, fileOffer{"sub/b.safetensors", len(s.file)})
}

func (s *script) head(file fileHead, head []byte) {
	m := s.encode(senderMessage{File: &file})
	m.Payloads = []pipe.Payload{{Data: head}}
	s.write(m)
}

// headFrom sends the header of the file index and states that the receiver has the first bytes
// before from.
func (s *script) headFrom(index, from int) {
	head := s.file[:headOf(s.file)]
	s.head(fileHead{index, sumOf(head), from}, head)
}

func (s *script) goodHead(index int) { s.headFrom(index, 0) }

func (s *script) chunk(file, offset int, data []byte, crc uint32) {
	m, err := encodeChunk(chunkHead{file, offset, crc}, data)
	require.NoError(s.t, err)
	s.write(m)
}

// goodChunk sends all bytes of the file index after its header.
func (s *script) goodChunk(index int) {
	head := headOf(s.file)
	s.chunk(index, head, s.file[head:], sumOf(s.file[head:]))
}

// only sends an offer of one file with that name and size, and does not wait for
// the answer.
func (s *script) only(name string, bytes int) {
	s.write(s.encode(senderMessage{Offer: &offer{Version: version, Files: []fileOffer{{name, bytes}}}}))
}

// TestHostileSenders checks for each violation of the protocol that the sender gets the reason,
// that no incomplete files are left, and that the next sender is served.
func TestHostileSenders(t *testing.T) { eachDialect(t, testHostileSenders) }

func testHostileSenders(t *testing.T, dialect pipe.Dialect) {
	var name *NameError
	var format *safetensors.FormatError
	for what, c := range map[string]struct {
		do   func(s *script)
		want any // an error to match, or a pointer for errors.As
		text string
	}{
		"no words":    {func(s *script) { s.write(&pipe.Message{Metadata: []byte("hello")}) }, ErrProtocol, "without valid metadata"},
		"silence":     {func(s *script) { s.write(&pipe.Message{}) }, ErrProtocol, "without valid metadata"},
		"wrong types": {func(s *script) { s.write(&pipe.Message{Metadata: []byte(`{"offer":{"files":3}}`)}) }, ErrProtocol, "without valid metadata"},
		"huge number": {func(s *script) {
			s.write(&pipe.Message{Metadata: []byte(`{"offer":{"version":1,"files":[{"bytes":1e30}]}}`)})
		}, ErrProtocol, "without valid metadata"},
		"no offer": {func(s *script) { s.goodChunk(0) }, ErrProtocol, "the first message is not an offer"},
		"offer and more": {func(s *script) {
			m := s.encode(senderMessage{Offer: &offer{Version: version, Files: []fileOffer{{"a.safetensors", 9}}}})
			m.Payloads = []pipe.Payload{{Data: []byte("x")}}
			s.write(m)
		}, ErrProtocol, "1 payloads and 0 tensors; want 0 and 0"},
		"version": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{Version: 1, Files: []fileOffer{{"a.safetensors", 9}}}}))
		}, ErrVersion, "version 1, this is 2"},
		"no files": {func(s *script) { s.write(s.encode(senderMessage{Offer: &offer{Version: version}})) }, ErrProtocol, "an offer of 0 files"},
		"many files": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{Version: version, Files: make([]fileOffer, maxFiles+1)}}))
		}, ErrProtocol, "an offer of 10001 files"},
		"climbing":     {func(s *script) { s.only("../a.safetensors", 9) }, &name, `"../a.safetensors" is not a plain relative path`},
		"absolute":     {func(s *script) { s.only("/tmp/a.safetensors", 9) }, &name, "is not a plain relative path"},
		"windows":      {func(s *script) { s.only(`a\b.safetensors`, 9) }, &name, "has a backslash"},
		"terminal":     {func(s *script) { s.only("\x1b]0;x\x07.safetensors", 9) }, &name, `"\x1b]0;x\a.safetensors" has control characters`},
		"our own name": {func(s *script) { s.only(".a.safetensors.tpipe-part", 9) }, &name, "does not end in NAME.safetensors"},
		"twice": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{Version: version, Files: []fileOffer{{"a.safetensors", 9}, {"A.safetensors", 9}}}}))
		}, &name, "differs from another by case only"},
		"less than nothing": {func(s *script) { s.only("a.safetensors", -1) }, ErrProtocol, "of -1 bytes"},
		"too many bytes":    {func(s *script) { s.only("a.safetensors", 1<<20+1) }, ErrLimit, "exceed the -max-bytes of 1048576"},
		"overflow": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{Version: version, Files: []fileOffer{{"a.safetensors", 9}, {"b.safetensors", math.MaxInt}}}}))
		}, ErrLimit, "exceed the -max-bytes"},

		"second offer": {func(s *script) { s.offersTwo(); s.only("c.safetensors", 9) }, ErrProtocol, "neither a file nor"},
		"both at once": {func(s *script) {
			s.offersTwo()
			s.write(s.encode(senderMessage{File: &fileHead{}, Chunk: &chunkHead{}}))
		}, ErrProtocol, "neither a file nor"},
		"other file":    {func(s *script) { s.offersTwo(); s.goodHead(1) }, ErrProtocol, "file 1 starts"},
		"no such file":  {func(s *script) { s.offersTwo(); s.goodHead(-1) }, ErrProtocol, "file -1 starts"},
		"same file":     {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodHead(0) }, ErrProtocol, "file 0 starts"},
		"next too soon": {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodHead(1) }, ErrProtocol, "file 1 starts"},
		"long head":     {func(s *script) { s.offers(fileOffer{"a.safetensors", 10}); s.goodHead(0) }, ErrProtocol, "larger than offered"},
		"no head":       {func(s *script) { s.offersTwo(); s.head(fileHead{File: 0}, nil) }, &format, "a.safetensors: safetensors: the file ends within the length of the header"},
		"cut head": {func(s *script) {
			s.offersTwo()
			cut := s.file[:headOf(s.file)-1]
			s.head(fileHead{File: 0, CRC: sumOf(cut)}, cut)
		}, &format, "the file ends within the header"},
		"head and more": {func(s *script) {
			s.offersTwo()
			more := s.file[:headOf(s.file)+1]
			s.head(fileHead{File: 0, CRC: sumOf(more)}, more)
		}, ErrProtocol, "1 bytes after the header"},
		"head changed": {func(s *script) { s.offersTwo(); s.head(fileHead{CRC: 1}, s.file[:headOf(s.file)]) }, ErrChecksum, "a.safetensors: header: wrong checksum"},
		"other size":   {func(s *script) { s.offers(fileOffer{"a.safetensors", len(s.file) + 1}); s.goodHead(0) }, &format, "the header describes"},
		"smaller size": {func(s *script) { s.offers(fileOffer{"a.safetensors", len(s.file) - 1}); s.goodHead(0) }, nil, "a.safetensors: safetensors: "},
		"not a header": {func(s *script) {
			s.offersTwo()
			bad := append([]byte{}, s.file[:headOf(s.file)]...)
			bad[9] = 'x'
			s.head(fileHead{File: 0, CRC: sumOf(bad)}, bad)
		}, &format, "a.safetensors: safetensors: "},
		"start unasked":  {func(s *script) { s.offersTwo(); s.headFrom(0, 5) }, ErrProtocol, "a start at byte 5"},
		"negative start": {func(s *script) { s.offersTwo(); s.headFrom(0, -chunkBytes) }, ErrProtocol, "a start at byte -4194304"},
		"compares unasked": {func(s *script) {
			s.offersTwo()
			s.write(s.encode(senderMessage{Comparing: true}))
		}, ErrProtocol, "neither a file nor"},
		"stop with more": {func(s *script) {
			s.offersTwo()
			m := s.encode(senderMessage{Stop: &stop{}})
			m.Payloads = []pipe.Payload{{Data: []byte("x")}}
			s.write(m)
		}, ErrProtocol, "neither a file nor"},

		"chunk first":    {func(s *script) { s.offersTwo(); s.goodChunk(0) }, ErrProtocol, "a chunk of file 0 at byte"},
		"chunk again":    {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodChunk(0); s.goodChunk(0) }, ErrProtocol, "out of order"},
		"chunk skipped":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.chunk(0, len(s.file)-1, []byte("1"), 0) }, ErrProtocol, "out of order"},
		"negative chunk": {func(s *script) { s.offersTwo(); s.goodHead(0); s.chunk(0, -1, nil, 0) }, ErrProtocol, "out of order"},
		"other's chunk":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodChunk(1) }, ErrProtocol, "out of order"},
		"short chunk":    {func(s *script) { s.offersTwo(); s.goodHead(0); s.chunk(0, headOf(s.file), []byte("1234"), 0) }, ErrProtocol, "a chunk of 4 bytes at byte"},
		"long chunk":     {func(s *script) { s.offersTwo(); s.goodHead(0); s.chunk(0, headOf(s.file), make([]byte, 13), 0) }, ErrProtocol, "a chunk of 13 bytes at byte"},
		"changed chunk":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.chunk(0, headOf(s.file), make([]byte, 12), 7) }, ErrChecksum, "a.safetensors: at byte"},
		"chunk as payload": {func(s *script) {
			s.offersTwo()
			s.goodHead(0)
			m := s.encode(senderMessage{Chunk: &chunkHead{}})
			m.Payloads = []pipe.Payload{{Data: make([]byte, 5)}}
			s.write(m)
		}, ErrProtocol, "1 payloads and 0 tensors; want 0 and 1"},
		"head as tensor": {func(s *script) {
			s.offersTwo()
			m := s.encode(senderMessage{File: &fileHead{}})
			m.Tensors = []pipe.Tensor{{Buffer: device.Bytes(make([]byte, 5))}}
			s.write(m)
		}, ErrProtocol, "0 payloads and 1 tensors; want 1 and 0"},
	} {
		t.Run(what, func(t *testing.T) {
			store, dir := openStore(t, StoreOptions{MaxBytes: 1 << 20})
			sender, receiver := ends(t, dialect)
			got := startReceive(t.Context(), store, receiver, NoWatcher{})
			c.do(&script{t, sender, heap("hostile", 5, 7)})
			heard := fault(t, sender)
			require.Contains(t, heard.Text, c.text)
			sender.Close()
			err := testwait.Finish(t, got)
			require.Equal(t, heard.Text, err.Error())
			switch want := c.want.(type) {
			case error:
				require.ErrorIs(t, err, want)
			case nil:
			default:
				require.ErrorAs(t, err, want)
			}
			for name := range tree(t, dir) { // the first file of two may be complete
				require.Contains(t, []string{"a.safetensors"}, name)
			}
			path := filepath.Join(t.TempDir(), "next.safetensors")
			writeFile(t, path, heap("next", 10))
			require.NoError(t, move(t, dialect, store, path))
		})
	}
}

// fault reads answers of the receiver from p until one reports a fault, and returns that fault. Any
// other error ends the test.
func fault(t *testing.T, p *pipe.Pipe) *FaultError {
	t.Helper()
	for {
		if _, err := nextAnswer(t.Context(), p); err != nil {
			heard, ok := errors.AsType[*FaultError](err)
			require.True(t, ok, "%v", err)
			return heard
		}
	}
}

// TestSenderThatGoes checks that a sender that closes or aborts the pipe during a transfer leaves
// no files, and that Receive returns the reason.
func TestSenderThatGoes(t *testing.T) { eachDialect(t, testSenderThatGoes) }

func testSenderThatGoes(t *testing.T, dialect pipe.Dialect) {
	for what, c := range map[string]struct {
		leave func(p *pipe.Pipe)
		text  string
	}{
		"closes": {func(p *pipe.Pipe) { p.Close() }, "peer closed the pipe"},
		"aborts": {func(p *pipe.Pipe) { p.Abort(errors.New("no more power")) }, "no more power"},
	} {
		t.Run(what, func(t *testing.T) {
			store, dir := openStore(t, StoreOptions{})
			sender, receiver := ends(t, dialect)
			var received log
			got := startReceive(t.Context(), store, receiver, &received)
			s := &script{t, sender, heap("gone", 5, 7)}
			s.offersTwo()
			s.goodHead(0)
			c.leave(sender)
			require.ErrorContains(t, testwait.Finish(t, got), c.text)
			require.Empty(t, tree(t, dir))
			require.Empty(t, received.placed)
		})
	}
}

// TestHostileReceivers checks that Send returns an error for each kind of invalid answer of a
// receiver, for a fault, and for a pipe that the receiver closes.
func TestHostileReceivers(t *testing.T) { eachDialect(t, testHostileReceivers) }

func testHostileReceivers(t *testing.T, dialect pipe.Dialect) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	writeFile(t, path, heap("w", 5, 7))
	placed := func(file int, crc uint32) receiverMessage { return receiverMessage{Placed: &filePlaced{file, crc}} }
	found := func(file, bytes, sums int) receiverMessage {
		return receiverMessage{Found: &fileFound{file, bytes, make([]byte, sums)}}
	}
	accepted := receiverMessage{Accepted: true}
	for what, c := range map[string]struct {
		answers []any
		want    string
	}{
		"found too many bytes": {[]any{accepted, found(0, 1<<40, 4)}, "a report of 1099511627776 bytes"},
		"found half a chunk":   {[]any{accepted, found(0, 1, 4)}, "a report of 1 bytes"},
		"found without sums":   {[]any{accepted, found(0, 5, 0)}, "with 0 bytes of sums"},
		"found twice":          {[]any{accepted, found(0, 0, 0), found(0, 0, 0)}, "of file 0, out of order"},
		"found other":          {[]any{accepted, found(1, 0, 0)}, "of file 1, out of order"},
		"stopped unasked":      {[]any{accepted, receiverMessage{Stopped: &stopped{}}}, "it has stopped unasked"},
		"old version":          {[]any{receiverMessage{Fault: oldVersionText}}, "use the same release of tpipe at both ends"},
		"no words":             {[]any{"hello"}, "without valid metadata"},
		"no answer":            {[]any{receiverMessage{}}, "no answer to the offer"},
		"placed at once":       {[]any{placed(0, 1)}, "no answer to the offer"},
		"accepted twice":       {[]any{receiverMessage{Accepted: true}, receiverMessage{Accepted: true}}, "an empty answer"},
		"no such file":         {[]any{receiverMessage{Accepted: true}, placed(1, 0)}, "confirmation of file 1, there are 1"},
		"negative file":        {[]any{receiverMessage{Accepted: true}, placed(-1, 0)}, "confirmation of file -1, there are 1"},
		"fault":                {[]any{receiverMessage{Accepted: true}, receiverMessage{Fault: "\x1b[2Jhaha"}}, `the receiver reports: "\x1b[2Jhaha"`},
		"refusal":              {[]any{receiverMessage{Fault: "go away"}}, "the receiver reports: go away"},
		"bytes":                {[]any{&pipe.Message{Metadata: []byte("{}"), Payloads: []pipe.Payload{{}}}}, "1 payloads and 0 tensors; want 0 and 0"},
		"close":                {nil, "peer closed the pipe"},
	} {
		t.Run(what, func(t *testing.T) {
			list, err := Gather([]string{path}, false)
			require.NoError(t, err)
			sender, receiver := ends(t, dialect)
			sent := testwait.Start(func() error { return Send(t.Context(), sender, list, SendOptions{Resume: true}, NoWatcher{}) })
			for _, a := range c.answers {
				m, ok := a.(*pipe.Message)
				if !ok {
					m, err = encode(a)
					require.NoError(t, err)
				}
				require.NoError(t, receiver.Write(t.Context(), m))
			}
			if c.answers == nil {
				receiver.Close()
			}
			require.ErrorContains(t, testwait.Finish(t, sent), c.want)
		})
	}
}

// TestSenderChecksTheSum checks that the sender rejects a confirmation with a wrong checksum, and a
// confirmation of a file that was not sent or was confirmed before.
func TestSenderChecksTheSum(t *testing.T) {
	list := &FileList{items: []item{{name: "w", path: "w"}}}
	s := &sender{list: list, watch: NoWatcher{}, sums: make([]*uint32, 1), from: make([]int, 1)}
	s.written(0, 7, 0)
	require.ErrorIs(t, s.confirm(&filePlaced{0, 1}), ErrChecksum)
	require.ErrorContains(t, s.confirm(&filePlaced{0, 7}), "confirmed before it was sent, or twice")
	s.written(0, 7, 0)
	require.NoError(t, s.confirm(&filePlaced{0, 7}))
}
