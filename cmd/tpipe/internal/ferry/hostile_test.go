package ferry

import (
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// script is a sender that says what it likes.
type script struct {
	t    *testing.T
	pipe *pipe.Pipe
	file []byte // two tensors of 5 and 7 bytes
}

// write sends a message and does not care whether it arrives: the receiver may
// have hung up.
func (s *script) write(m *pipe.Message) { _ = s.pipe.Write(s.t.Context(), m) }

func (s *script) say(word any) *pipe.Message {
	m, err := say(word)
	require.NoError(s.t, err)
	return m
}

// offers offers files, and expects that to be accepted.
func (s *script) offers(files ...offered) {
	s.write(s.say(order{Offer: &offer{version, files}}))
	a, err := nextAnswer(s.t.Context(), s.pipe)
	require.NoError(s.t, err)
	require.True(s.t, a.Accepted)
}

func (s *script) offersTwo() {
	s.offers(offered{"a.safetensors", len(s.file), 7}, offered{"sub/b.safetensors", len(s.file), 7})
}

func (s *script) head(index int, head []byte, crc uint32) {
	m := s.say(order{File: &fileOrder{index, crc}})
	m.Payloads = []pipe.Payload{{Data: head}}
	s.write(m)
}

func (s *script) goodHead(index int) {
	head := s.file[:headOf(s.file)]
	s.head(index, head, sumOf(head))
}

func (s *script) tensor(file, index int, data []byte, crc uint32) {
	m, err := sayTensor(tensorOrder{file, index, crc}, device.Bytes(data))
	require.NoError(s.t, err)
	s.write(m)
}

func (s *script) goodTensor(file, index int) {
	at := headOf(s.file) + 5*index
	data := s.file[at : at+5+2*index]
	s.tensor(file, index, data, sumOf(data))
}

// only is an offer of one file.
func (s *script) only(name string, bytes, largest int) {
	s.write(s.say(order{Offer: &offer{version, []offered{{name, bytes, largest}}}}))
}

// Whatever a sender says, it hears what is wrong, nothing is left of it, and the
// next one is served.
func TestHostileSenders(t *testing.T) { eachDialect(t, testHostileSenders) }

func testHostileSenders(t *testing.T, dialect string) {
	var name *NameError
	var format *safetensors.FormatError
	for what, c := range map[string]struct {
		do   func(s *script)
		want any // an error to match, or a pointer to one
		text string
	}{
		"no words":    {func(s *script) { s.write(&pipe.Message{Metadata: []byte("hello")}) }, ErrProtocol, "no word of this protocol"},
		"silence":     {func(s *script) { s.write(&pipe.Message{}) }, ErrProtocol, "no word of this protocol"},
		"wrong types": {func(s *script) { s.write(&pipe.Message{Metadata: []byte(`{"offer":{"files":3}}`)}) }, ErrProtocol, "no word"},
		"huge number": {func(s *script) {
			s.write(&pipe.Message{Metadata: []byte(`{"offer":{"version":1,"files":[{"bytes":1e30}]}}`)})
		}, ErrProtocol, "no word"},
		"no offer": {func(s *script) { s.goodTensor(0, 0) }, ErrProtocol, "the first message is no offer"},
		"offer and more": {func(s *script) {
			m := s.say(order{Offer: &offer{version, []offered{{"a.safetensors", 9, 0}}}})
			m.Payloads = []pipe.Payload{{Data: []byte("x")}}
			s.write(m)
		}, ErrProtocol, "1 payloads and 0 tensors where 0 and 0 belong"},
		"version":      {func(s *script) { s.write(s.say(order{Offer: &offer{2, []offered{{"a.safetensors", 9, 0}}}})) }, ErrProtocol, "version 2, this is 1"},
		"no files":     {func(s *script) { s.write(s.say(order{Offer: &offer{Version: version}})) }, ErrProtocol, "an offer of 0 files"},
		"many files":   {func(s *script) { s.write(s.say(order{Offer: &offer{version, make([]offered, maxFiles+1)}})) }, ErrProtocol, "an offer of 10001 files"},
		"climbing":     {func(s *script) { s.only("../a.safetensors", 9, 0) }, &name, `"../a.safetensors" is not a plain relative path`},
		"absolute":     {func(s *script) { s.only("/tmp/a.safetensors", 9, 0) }, &name, "is not a plain relative path"},
		"windows":      {func(s *script) { s.only(`a\b.safetensors`, 9, 0) }, &name, "has a backslash"},
		"terminal":     {func(s *script) { s.only("\x1b]0;x\x07.safetensors", 9, 0) }, &name, `"\x1b]0;x\a.safetensors" has control characters`},
		"our own name": {func(s *script) { s.only(".a.safetensors.tpipe-part", 9, 0) }, &name, "does not end in NAME.safetensors"},
		"twice": {func(s *script) {
			s.write(s.say(order{Offer: &offer{version, []offered{{"a.safetensors", 9, 0}, {"A.safetensors", 9, 0}}}}))
		}, &name, "differs from another by case alone"},
		"less than nothing": {func(s *script) { s.only("a.safetensors", -1, 0) }, ErrProtocol, "of -1 bytes"},
		"odd tensor":        {func(s *script) { s.only("a.safetensors", 9, 10) }, ErrProtocol, "with a tensor of 10"},
		"too many bytes":    {func(s *script) { s.only("a.safetensors", 1<<20+1, 0) }, ErrLimit, "more than the -max-bytes of 1048576"},
		"overflow": {func(s *script) {
			s.write(s.say(order{Offer: &offer{version, []offered{{"a.safetensors", 9, 0}, {"b.safetensors", math.MaxInt, 0}}}}))
		}, ErrLimit, "more than the -max-bytes"},
		"large tensor": {func(s *script) { s.only("a.safetensors", 1001, 1001) }, ErrLimit, "a tensor of 1001 bytes, the -limit is 1000"},

		"second offer":  {func(s *script) { s.offersTwo(); s.only("c.safetensors", 9, 0) }, ErrProtocol, "neither begins a file nor"},
		"both at once":  {func(s *script) { s.offersTwo(); s.write(s.say(order{File: &fileOrder{}, Tensor: &tensorOrder{}})) }, ErrProtocol, "neither begins a file nor"},
		"other file":    {func(s *script) { s.offersTwo(); s.goodHead(1) }, ErrProtocol, "file 1 begins"},
		"no such file":  {func(s *script) { s.offersTwo(); s.goodHead(-1) }, ErrProtocol, "file -1 begins"},
		"same file":     {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodHead(0) }, ErrProtocol, "file 0 begins"},
		"next too soon": {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(0, 0); s.goodHead(1) }, ErrProtocol, "file 1 begins"},
		"long head":     {func(s *script) { s.offers(offered{"a.safetensors", 10, 7}); s.goodHead(0) }, ErrProtocol, "larger than offered"},
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
		}, ErrProtocol, "1 bytes more than the header has"},
		"head changed": {func(s *script) { s.offersTwo(); s.head(0, s.file[:headOf(s.file)], 1) }, ErrChecksum, "a.safetensors: header: wrong checksum"},
		"other size":   {func(s *script) { s.offers(offered{"a.safetensors", len(s.file) + 1, 7}); s.goodHead(0) }, &format, "the header describes"},
		"smaller size": {func(s *script) { s.offers(offered{"a.safetensors", len(s.file) - 1, 7}); s.goodHead(0) }, nil, "a.safetensors: safetensors: "},
		"not a header": {func(s *script) {
			s.offersTwo()
			bad := append([]byte{}, s.file[:headOf(s.file)]...)
			bad[9] = 'x'
			s.head(0, bad, sumOf(bad))
		}, &format, "a.safetensors: safetensors: "},
		"lying about tensors": {func(s *script) {
			file := heap("big", 2000)
			s.offers(offered{"a.safetensors", len(file), 1})
			s.head(0, file[:headOf(file)], sumOf(file[:headOf(file)]))
		}, ErrLimit, "a tensor of 2000 bytes, the -limit is 1000"},

		"tensor first":    {func(s *script) { s.offersTwo(); s.goodTensor(0, 0) }, ErrProtocol, "tensor 0 of file 0 out of turn"},
		"tensor again":    {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(0, 0); s.goodTensor(0, 0) }, ErrProtocol, "out of turn"},
		"tensor skipped":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(0, 1) }, ErrProtocol, "out of turn"},
		"negative tensor": {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, -1, nil, 0) }, ErrProtocol, "out of turn"},
		"other's tensor":  {func(s *script) { s.offersTwo(); s.goodHead(0); s.goodTensor(1, 0) }, ErrProtocol, "out of turn"},
		"too many tensors": {func(s *script) {
			s.offersTwo()
			s.goodHead(0)
			s.goodTensor(0, 0)
			s.goodTensor(0, 1)
			s.tensor(0, 2, nil, 0)
		}, ErrProtocol, "out of turn"},
		"short tensor":   {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, 0, []byte("1234"), 0) }, ErrProtocol, "tensor 0 with 4 bytes; the header says 5"},
		"long tensor":    {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, 0, []byte("123456"), 0) }, ErrProtocol, "tensor 0 with 6 bytes; the header says 5"},
		"changed tensor": {func(s *script) { s.offersTwo(); s.goodHead(0); s.tensor(0, 0, []byte("12345"), 7) }, ErrChecksum, "a.safetensors: tensor 0: wrong checksum"},
		"tensor as payload": {func(s *script) {
			s.offersTwo()
			s.goodHead(0)
			m := s.say(order{Tensor: &tensorOrder{}})
			m.Payloads = []pipe.Payload{{Data: make([]byte, 5)}}
			s.write(m)
		}, ErrProtocol, "1 payloads and 0 tensors where 0 and 1 belong"},
		"head as tensor": {func(s *script) {
			s.offersTwo()
			m := s.say(order{File: &fileOrder{}})
			m.Tensors = []pipe.Tensor{{Buffer: device.Bytes(make([]byte, 5))}}
			s.write(m)
		}, ErrProtocol, "0 payloads and 1 tensors where 1 and 0 belong"},
	} {
		t.Run(what, func(t *testing.T) {
			store, dir := openStore(t, StoreOptions{MaxBytes: 1 << 20, MaxTensor: 1000})
			sender, receiver := ends(t, dialect)
			got := receiving(t.Context(), store, receiver, Nobody{})
			c.do(&script{t, sender, heap("hostile", 5, 7)})
			heard := fault(t, sender)
			require.Contains(t, heard.Text, c.text)
			sender.Close()
			err := patience.Finish(t, got)
			require.Equal(t, heard.Text, err.Error())
			switch want := c.want.(type) {
			case error:
				require.ErrorIs(t, err, want)
			case nil:
			default:
				require.ErrorAs(t, err, want)
			}
			for name := range tree(t, dir) { // the first file of two may have arrived whole
				require.Contains(t, []string{"a.safetensors"}, name)
			}
			path := filepath.Join(t.TempDir(), "next.safetensors")
			writeFile(t, path, heap("next", 10))
			require.NoError(t, move(t, dialect, store, path))
		})
	}
}

// fault reads answers up to the one that says what is wrong.
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

// A sender that goes in the middle leaves nothing behind, whether it says why
// or not.
func TestSenderThatGoes(t *testing.T) { eachDialect(t, testSenderThatGoes) }

func testSenderThatGoes(t *testing.T, dialect string) {
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
			got := receiving(t.Context(), store, receiver, &received)
			s := &script{t, sender, heap("gone", 5, 7)}
			s.offersTwo()
			s.goodHead(0)
			s.goodTensor(0, 0)
			c.leave(sender)
			require.ErrorContains(t, patience.Finish(t, got), c.text)
			require.Empty(t, tree(t, dir))
			require.Empty(t, received.placed)
		})
	}
}

// A receiver that lies does not make a sender believe that files arrived.
func TestHostileReceivers(t *testing.T) { eachDialect(t, testHostileReceivers) }

func testHostileReceivers(t *testing.T, dialect string) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	writeFile(t, path, heap("w", 5, 7))
	placed := func(file int, crc uint32) answer { return answer{Placed: &fileAnswer{file, crc}} }
	for what, c := range map[string]struct {
		answers []any
		want    string
	}{
		"no words":       {[]any{"hello"}, "no word of this protocol"},
		"no answer":      {[]any{answer{}}, "no answer to the offer"},
		"placed at once": {[]any{placed(0, 1)}, "no answer to the offer"},
		"accepted twice": {[]any{answer{Accepted: true}, answer{Accepted: true}}, "an answer that says nothing"},
		"no such file":   {[]any{answer{Accepted: true}, placed(1, 0)}, "file 1 placed of 1"},
		"negative file":  {[]any{answer{Accepted: true}, placed(-1, 0)}, "file -1 placed of 1"},
		"fault":          {[]any{answer{Accepted: true}, answer{Fault: "\x1b[2Jhaha"}}, `the receiver says: "\x1b[2Jhaha"`},
		"refusal":        {[]any{answer{Fault: "go away"}}, "the receiver says: go away"},
		"bytes":          {[]any{&pipe.Message{Metadata: []byte("{}"), Payloads: []pipe.Payload{{}}}}, "1 payloads and 0 tensors where 0 and 0"},
		"close":          {nil, "peer closed the pipe"},
	} {
		t.Run(what, func(t *testing.T) {
			cargo, err := Gather([]string{path}, false)
			require.NoError(t, err)
			sender, receiver := ends(t, dialect)
			sent := patience.Start(func() error { return Send(t.Context(), sender, cargo, Nobody{}) })
			for _, a := range c.answers {
				m, ok := a.(*pipe.Message)
				if !ok {
					m, err = say(a)
					require.NoError(t, err)
				}
				require.NoError(t, receiver.Write(t.Context(), m))
			}
			if c.answers == nil {
				receiver.Close()
			}
			require.ErrorContains(t, patience.Finish(t, sent), c.want)
		})
	}
}

// A receiver that got other bytes than were sent, and does not notice, says a
// wrong sum.
func TestSenderChecksTheSum(t *testing.T) {
	cargo := &Cargo{items: []item{{name: "w", path: "w"}}}
	sum := newFileSum([]byte("head"), 0)
	s := &shipment{cargo: cargo, watch: Nobody{}, sums: []*fileSum{&sum}}
	require.ErrorIs(t, s.confirm(&fileAnswer{0, 1}), ErrChecksum)
	require.ErrorContains(t, s.confirm(&fileAnswer{0, sumOf([]byte("head"))}), "placed before it was sent, or twice")
	s.written(0, &sum)
	require.NoError(t, s.confirm(&fileAnswer{0, sumOf([]byte("head"))}))
}
