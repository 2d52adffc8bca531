package interop

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// upgrade is about one and the same listener and what it speaks with whom: the
// native dialect with another process of ours, as both say in places of the
// handshake where libtensorpipe ignores what it does not know, and TensorPipe's
// own with libtensorpipe.
func upgrade(t *testing.T) {
	echo, url := startTpipeEcho(t)
	t.Run("a Go client is upgraded", func(t *testing.T) { upgraded(t, url) })
	t.Run("a C++ client is not", func(t *testing.T) { notUpgraded(t, url) })
	t.Run("a C++ server does not upgrade", func(t *testing.T) {
		p := plain.dial(t, Start(t, "echo", "--listen", "uv://127.0.0.1:0"))
		require.Equal(t, pipe.DialectCompatible, p.Plan().Dialect)
		require.Contains(t, p.Plan().Refused, pipe.Refusal{What: "dialect", Name: pipe.DialectNative, Reason: "the peer does not know it"})
		echoes(t, p)
	})
	require.NoError(t, echo.Process.Kill())
	_ = echo.Wait() // it was killed
}

// startTpipeEcho starts the echo that users have, as a process.
func startTpipeEcho(t *testing.T) (echo *exec.Cmd, url string) {
	t.Helper()
	echo = exec.Command(tpipeProgram(t), "echo", "-listen", "uv://127.0.0.1:0")
	out := newLines()
	echo.Stdout = out
	require.NoError(t, echo.Start())
	t.Cleanup(func() { _ = echo.Process.Kill() })
	line, err := out.next(patience)
	require.NoError(t, err)
	url, ok := strings.CutPrefix(line, "listening on ")
	require.True(t, ok, line)
	return echo, url
}

// upgraded looks at what two ends of ours say to each other.
func upgraded(t *testing.T, url string) {
	tap := newTap(t, strings.TrimPrefix(url, "uv://"))
	p, err := plain.context(t).Dial(testContext(t), "uv://"+tap.Addr().String())
	require.NoError(t, err)
	require.Equal(t, pipe.DialectNative, p.Plan().Dialect)
	echoes(t, p)
	hello := native.Message{Metadata: []byte("both ways")}
	require.NoError(t, p.Write(testContext(t), &pipe.Message{Metadata: hello.Metadata}))
	requireMessage(t, Message{Metadata: hello.Metadata}, p)
	require.NoError(t, p.Close())

	ours, theirs := tap.heard()
	frame(t, ours) // the context's name
	brochure, err := wire.DecodeBrochure(frame(t, ours), wire.Limits{})
	require.NoError(t, err)
	require.Equal(t, "0-1+3", brochure.TransportDomainDescriptors[wire.MarkerName])
	answer, err := wire.DecodeBrochureAnswer(frame(t, theirs), wire.Limits{})
	require.NoError(t, err)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	require.Equal(t, wire.Marker{MinVersion: 1, MaxVersion: 1, Features: wire.FeatureControl | wire.FeatureCompression}, chosen)
	for _, rest := range []*bytes.Buffer{ours, theirs} {
		require.Equal(t, []byte{0, 1}, rest.Bytes()[:2], "right behind comes yamux, with the opening of a stream")
		require.Contains(t, rest.String(), string(hello.AppendHead(nil, false)), "and in it messages of ours")
	}
}

func notUpgraded(t *testing.T, url string) {
	tap := newTap(t, strings.TrimPrefix(url, "uv://"))
	peer := Start(t, append([]string{"check", "--to", "uv://" + tap.Addr().String()}, Shape{Seed: 31}.flags(20)...)...)
	var sums totals
	peer.Next(&sums)
	require.NoError(t, peer.Wait())
	require.Equal(t, 20, sums.Messages)
	_, theirs := tap.heard()
	answer, err := wire.DecodeBrochureAnswer(frame(t, theirs), wire.Limits{})
	require.NoError(t, err)
	_, marked := answer.Marker()
	require.False(t, marked, "a peer without a marker gets none")
}

// echoes exchanges messages of all kinds with an echo.
func echoes(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	for i := range 20 {
		sent := Generate(Shape{Seed: 30}, i)
		op := p.WriteAsync(testContext(t), sent.pipe())
		requireMessage(t, sent, p)
		require.NoError(t, op.Wait(testContext(t)))
	}
}

// frame takes a frame of the handshake out of what was heard.
func frame(t *testing.T, heard *bytes.Buffer) []byte {
	t.Helper()
	size := int(binary.LittleEndian.Uint64(heard.Next(8)))
	require.LessOrEqual(t, size, heard.Len())
	return heard.Next(size)
}

// tap stands between a client and a server and keeps what passes on the first
// connection; it passes on others.
type tap struct {
	net.Listener
	mu           sync.Mutex
	ours, theirs bytes.Buffer
	passing      sync.WaitGroup
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tap := &tap{Listener: l}
	tap.passing.Go(func() { tap.accept(server) })
	t.Cleanup(func() {
		l.Close()
		tap.passing.Wait()
	})
	return tap
}

func (p *tap) accept(server string) {
	ours, theirs := io.Writer(&p.ours), io.Writer(&p.theirs)
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", server)
		if err != nil {
			client.Close()
			return
		}
		p.pass(up, client, ours)
		p.pass(client, up, theirs)
		ours, theirs = io.Discard, io.Discard
	}
}

func (p *tap) pass(dst, src net.Conn, copy io.Writer) {
	p.passing.Go(func() {
		// What the peer may have answered has been noted.
		_, _ = io.Copy(io.MultiWriter(locked{copy, &p.mu}, dst), src) // the ends find out
		_ = dst.(*net.TCPConn).CloseWrite()
	})
}

// heard is what passed until now.
func (p *tap) heard() (ours, theirs *bytes.Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.NewBuffer(bytes.Clone(p.ours.Bytes())), bytes.NewBuffer(bytes.Clone(p.theirs.Bytes()))
}

type locked struct {
	io.Writer
	mu *sync.Mutex
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Writer.Write(p)
}
