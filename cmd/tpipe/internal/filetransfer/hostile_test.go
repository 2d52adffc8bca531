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

// write sends a message and ignores errors: the receiver may have closed the pipe.
func (s *script) write(m *pipe.Message) { _ = s.pipe.Write(s.t.Context(), m) }

func (s *script) encode(word any) *pipe.Message {
	m, err := encode(word)
	require.NoError(s.t, err)
	return m
}

// offers sends an offer and requires that it is accepted.
func (s *script) offers(files ...fileOffer) {
	s.write(s.encode(senderMessage{Offer: &offer{version, files}}))
	a, err := nextAnswer(s.t.Context(), s.pipe)
	require.NoError(s.t, err)
	require.True(s.t, a.Accepted)
}

func (s *script) offersTwo() {
	s.offers(fileOffer{"a.safetensors", len(s.file), 7}, fileOffer{"sub/b.safetensors", len(s.file), 7})
}

func (s *script) head(index int, head []byte, crc uint32) {
	m := s.encode(senderMessage{File: &fileHead{index, crc}})
	m.Payloads = []pipe.Payload{{Data: head}}
	s.write(m)
}

func (s *script) goodHead(index int) {
	head := s.file[:headOf(s.file)]
	s.head(index, head, sumOf(head))
}

func (s *script) tensor(file, index int, data []byte, crc uint32) {
	m, err := encodeTensor(tensorHead{file, index, crc}, device.Bytes(data))
	require.NoError(s.t, err)
	s.write(m)
}

func (s *script) goodTensor(file, index int) {
	at := headOf(s.file) + 5*index
	data := s.file[at : at+5+2*index]
	s.tensor(file, index, data, sumOf(data))
}

// only sends an offer of one file.
func (s *script) only(name string, bytes, largest int) {
	s.write(s.encode(senderMessage{Offer: &offer{version, []fileOffer{{name, bytes, largest}}}}))
}

// A sender that violates the protocol gets the reason, leaves no files, and the next sender is
// served.
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
		"no offer": {func(s *script) { s.goodTensor(0, 0) }, ErrProtocol, "the first message is not an offer"},
		"offer and more": {func(s *script) {
			m := s.encode(senderMessage{Offer: &offer{version, []fileOffer{{"a.safetensors", 9, 0}}}})
			m.Payloads = []pipe.Payload{{Data: []byte("x")}}
			s.write(m)
		}, ErrProtocol, "1 payloads and 0 tensors; want 0 and 0"},
		"version": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{2, []fileOffer{{"a.safetensors", 9, 0}}}}))
		}, ErrProtocol, "version 2, this is 1"},
		"no files": {func(s *script) { s.write(s.encode(senderMessage{Offer: &offer{Version: version}})) }, ErrProtocol, "an offer of 0 files"},
		"many files": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{version, make([]fileOffer, maxFiles+1)}}))
		}, ErrProtocol, "an offer of 10001 files"},
		"climbing":     {func(s *script) { s.only("../a.safetensors", 9, 0) }, &name, `"../a.safetensors" is not a plain relative path`},
		"absolute":     {func(s *script) { s.only("/tmp/a.safetensors", 9, 0) }, &name, "is not a plain relative path"},
		"windows":      {func(s *script) { s.only(`a\b.safetensors`, 9, 0) }, &name, "has a backslash"},
		"terminal":     {func(s *script) { s.only("\x1b]0;x\x07.safetensors", 9, 0) }, &name, `"\x1b]0;x\a.safetensors" has control characters`},
		"our own name": {func(s *script) { s.only(".a.safetensors.tpipe-part", 9, 0) }, &name, "does not end in NAME.safetensors"},
		"twice": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{version, []fileOffer{{"a.safetensors", 9, 0}, {"A.safetensors", 9, 0}}}}))
		}, &name, "differs from another by case only"},
		"less than nothing": {func(s *script) { s.only("a.safetensors", -1, 0) }, ErrProtocol, "of -1 bytes"},
		"odd tensor":        {func(s *script) { s.only("a.safetensors", 9, 10) }, ErrProtocol, "with a tensor of 10"},
		"too many bytes":    {func(s *script) { s.only("a.safetensors", 1<<20+1, 0) }, ErrLimit, "exceed the -max-bytes of 1048576"},
		"overflow": {func(s *script) {
			s.write(s.encode(senderMessage{Offer: &offer{version, []fileOffer{{"a.safetensors", 9, 0}, {"b.safetensors", math.MaxInt, 0}}}}))
		}, ErrLimit, "exceed the -max-bytes"},
		"large tensor": {func(s *script) { s.only("a.safetensors", 1001, 1001) }, ErrLimit, "a tensor of 1001 bytes, the -limit is 1000"},

		"second offer": {func(s *script) { s.offersTwo(); s.only("c.safetensors", 9, 0) }, ErrProtocol, "neither a file nor"},
		"both at once": {func(s *script) {
			s.offersTwo()
			s.write(s.encode(senderMessage{File: &fileHead{}, Tensor: &tensorHead{}}))
		}, ErrProtocol, "neither a file nor"},
		"other file":    {func(s *script) { s.offersTwo(); s.goodHead(1) }, ErrProtocol, "file 1 starts"},
		"no such file":  {func(s *script) { s.offersTwo(); s.goodHead(-1) }, ErrProtocol, "file -1 starts"},
		"same file":     {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodHead(0) }, ErrProtocol, "file 0 starts"},
		"next too soon": {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(0, 0); s.goodHead(1) }, ErrProtocol, "file 1 starts"},
		"long head":     {func(s *script) { s.offers(fileOffer{"a.safetensors", 10, 7}); s.goodHead(0) }, ErrProtocol, "larger than offered"},
		"no head":       {func(s *script) { s.offersTwo(); s.head(0, nil, 0) }, &format, "a.safetensors: safetensors: the file ends within the length of the header"},
		"cut head": {func(s *script) {
			s.offersTwo()
			cut := s.file[:headOf(s.file)-1]
			s.head(0, cut, sumOf(cut))
		}, &format, "the file ends within the header"},
		"head and more": {func(s *script) {
			s.offersTwo()
			more := s.file[:headOf(s.file)+1]
			s.head(0, more, sumOf(more))
		}, ErrProtocol, "1 bytes after the header"},
		"head changed": {func(s *script) { s.offersTwo(); s.head(0, s.file[:headOf(s.file)], 1) }, ErrChecksum, "a.safetensors: header: wrong checksum"},
		"other size":   {func(s *script) { s.offers(fileOffer{"a.safetensors", len(s.file) + 1, 7}); s.goodHead(0) }, &format, "the header describes"},
		"smaller size": {func(s *script) { s.offers(fileOffer{"a.safetensors", len(s.file) - 1, 7}); s.goodHead(0) }, nil, "a.safetensors: safetensors: "},
		"not a header": {func(s *script) {
			s.offersTwo()
			bad := append([]byte{}, s.file[:headOf(s.file)]...)
			bad[9] = 'x'
			s.head(0, bad, sumOf(bad))
		}, &format, "a.safetensors: safetensors: "},
		"lying about tensors": {func(s *script) {
			file := heap("big", 2000)
			s.offers(fileOffer{"a.safetensors", len(file), 1})
			s.head(0, file[:headOf(file)], sumOf(file[:headOf(file)]))
		}, ErrLimit, "a tensor of 2000 bytes, the -limit is 1000"},

		"tensor first":    {func(s *script) { s.offersTwo(); s.goodTensor(0, 0) }, ErrProtocol, "tensor 0 of file 0 out of order"},
		"tensor again":    {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(0, 0); s.goodTensor(0, 0) }, ErrProtocol, "out of order"},
		"tensor skipped":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(0, 1) }, ErrProtocol, "out of order"},
		"negative tensor": {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, -1, nil, 0) }, ErrProtocol, "out of order"},
		"other's tensor":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(1, 0) }, ErrProtocol, "out of order"},
		"too many tensors": {func(s *script) {
			s.offersTwo()
			s.goodHead(0)
			s.goodTensor(0, 0)
			s.goodTensor(0, 1)
			s.tensor(0, 2, nil, 0)
		}, ErrProtocol, "out of order"},
		"short tensor":   {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, 0, []byte("1234"), 0) }, ErrProtocol, "tensor 0 with 4 bytes; the header describes 5"},
		"long tensor":    {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, 0, []byte("123456"), 0) }, ErrProtocol, "tensor 0 with 6 bytes; the header describes 5"},
		"changed tensor": {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, 0, []byte("12345"), 7) }, ErrChecksum, "a.safetensors: tensor 0: wrong checksum"},
		"tensor as payload": {func(s *script) {
			s.offersTwo()
			s.goodHead(0)
			m := s.encode(senderMessage{Tensor: &tensorHead{}})
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
			store, dir := openStore(t, StoreOptions{MaxBytes: 1 << 20, MaxTensor: 1000})
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

// fault reads answers up to the fault.
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

// A sender that closes or aborts the pipe during a transfer leaves no files.
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
			s.goodTensor(0, 0)
			c.leave(sender)
			require.ErrorContains(t, testwait.Finish(t, got), c.text)
			require.Empty(t, tree(t, dir))
			require.Empty(t, received.placed)
		})
	}
}

// A sender detects wrong confirmations of a receiver.
func TestHostileReceivers(t *testing.T) { eachDialect(t, testHostileReceivers) }

func testHostileReceivers(t *testing.T, dialect pipe.Dialect) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	writeFile(t, path, heap("w", 5, 7))
	placed := func(file int, crc uint32) receiverMessage { return receiverMessage{Placed: &filePlaced{file, crc}} }
	for what, c := range map[string]struct {
		answers []any
		want    string
	}{
		"no words":       {[]any{"hello"}, "without valid metadata"},
		"no answer":      {[]any{receiverMessage{}}, "no answer to the offer"},
		"placed at once": {[]any{placed(0, 1)}, "no answer to the offer"},
		"accepted twice": {[]any{receiverMessage{Accepted: true}, receiverMessage{Accepted: true}}, "an empty answer"},
		"no such file":   {[]any{receiverMessage{Accepted: true}, placed(1, 0)}, "confirmation of file 1, there are 1"},
		"negative file":  {[]any{receiverMessage{Accepted: true}, placed(-1, 0)}, "confirmation of file -1, there are 1"},
		"fault":          {[]any{receiverMessage{Accepted: true}, receiverMessage{Fault: "\x1b[2Jhaha"}}, `the receiver reports: "\x1b[2Jhaha"`},
		"refusal":        {[]any{receiverMessage{Fault: "go away"}}, "the receiver reports: go away"},
		"bytes":          {[]any{&pipe.Message{Metadata: []byte("{}"), Payloads: []pipe.Payload{{}}}}, "1 payloads and 0 tensors; want 0 and 0"},
		"close":          {nil, "peer closed the pipe"},
	} {
		t.Run(what, func(t *testing.T) {
			list, err := Gather([]string{path}, false)
			require.NoError(t, err)
			sender, receiver := ends(t, dialect)
			sent := testwait.Start(func() error { return Send(t.Context(), sender, list, NoWatcher{}) })
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

// A receiver that does not notice wrong bytes confirms a wrong checksum.
func TestSenderChecksTheSum(t *testing.T) {
	list := &FileList{items: []item{{name: "w", path: "w"}}}
	sum := newFileSum([]byte("head"), 0)
	s := &sender{list: list, watch: NoWatcher{}, sums: []*fileSum{&sum}}
	require.ErrorIs(t, s.confirm(&filePlaced{0, 1}), ErrChecksum)
	require.ErrorContains(t, s.confirm(&filePlaced{0, sumOf([]byte("head"))}), "confirmed before it was sent, or twice")
	s.written(0, &sum)
	require.NoError(t, s.confirm(&filePlaced{0, sumOf([]byte("head"))}))
}
