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

// upgrade checks that a Go process and the same listener of a Go process agree on the native
// dialect, that libtensorpipe as the client of that listener, and as a server for a Go client, uses
// the compatible one, and that messages arrive in all cases.
func upgrade(t *testing.T) {
	echo, url := startTpipeEcho(t)
	t.Run("a Go client is upgraded", func(t *testing.T) { goClientUpgraded(t, url) })
	t.Run("a C++ client is not", func(t *testing.T) { cppClientNotUpgraded(t, url) })
	t.Run("a C++ server does not upgrade", func(t *testing.T) {
		p := plain.dial(t, Start(t, "echo", "--listen", "uv://127.0.0.1:0"))
		require.Equal(t, pipe.DialectCompatible, p.Plan().Dialect)
		require.Contains(t, p.Plan().Refused, pipe.Refusal{Kind: "dialect", Name: string(pipe.DialectNative), Reason: "the peer does not know it"})
		exchangeWithEcho(t, p)
	})
	require.NoError(t, echo.Process.Kill())
	_ = echo.Wait() // it was killed
}

// startTpipeEcho builds tpipe, starts its command echo in a process, and returns the process and
// the URL at which it listens. The process is killed at the end of the test.
func startTpipeEcho(t *testing.T) (echo *exec.Cmd, url string) {
	t.Helper()
	echo = exec.Command(tpipeProgram(t), "echo", "-listen", "uv://127.0.0.1:0")
	out := newLines()
	echo.Stdout = out
	require.NoError(t, echo.Start())
	t.Cleanup(func() { _ = echo.Process.Kill() })
	line, err := out.next(maxWait)
	require.NoError(t, err)
	url, ok := strings.CutPrefix(line, "listening on ")
	require.True(t, ok, line)
	return echo, url
}

// goClientUpgraded dials url, where a Go process echoes, through a proxy that records the bytes. It
// checks that the two agree on the native dialect, and that the recorded bytes are those of its
// handshake and messages.
func goClientUpgraded(t *testing.T, url string) {
	tap := newTap(t, strings.TrimPrefix(url, "uv://"))
	p, err := plain.context(t).Dial(testContext(t), "uv://"+tap.Addr().String())
	require.NoError(t, err)
	require.Equal(t, pipe.DialectNative, p.Plan().Dialect)
	exchangeWithEcho(t, p)
	hello := native.Message{Metadata: []byte("both ways")}
	require.NoError(t, p.Write(testContext(t), &pipe.Message{Metadata: hello.Metadata}))
	requireMessage(t, Message{Metadata: hello.Metadata}, p)
	require.NoError(t, p.Close())

	ours, theirs := tap.captured()
	frame(t, ours) // the context's name
	brochure, err := wire.DecodeBrochure(frame(t, ours), wire.Limits{})
	require.NoError(t, err)
	require.Equal(t, "0-1+17", brochure.TransportDomainDescriptors[wire.MarkerName])
	answer, err := wire.DecodeBrochureAnswer(frame(t, theirs), wire.Limits{})
	require.NoError(t, err)
	chosen, ok := answer.Marker()
	require.True(t, ok)
	require.Equal(t, wire.Marker{MinVersion: 1, MaxVersion: 1, Features: wire.FeatureControl | wire.FeatureCompression | wire.FeatureJoined | wire.FeatureEager}, chosen)
	for _, stream := range []*bytes.Buffer{ours, theirs} {
		require.Equal(t, []byte{0, 1}, stream.Bytes()[:2], "the next frame is yamux's, and opens a stream")
		require.Contains(t, stream.String(), string(hello.AppendDescriptor(nil, false)), "its data is a native message")
	}
}

func cppClientNotUpgraded(t *testing.T, url string) {
	tap := newTap(t, strings.TrimPrefix(url, "uv://"))
	peer := Start(t, append([]string{"check", "--to", "uv://" + tap.Addr().String()}, Shape{Seed: 31}.flags(20)...)...)
	var sums totals
	peer.Next(&sums)
	require.NoError(t, peer.Wait())
	require.Equal(t, 20, sums.Messages)
	_, theirs := tap.captured()
	answer, err := wire.DecodeBrochureAnswer(frame(t, theirs), wire.Limits{})
	require.NoError(t, err)
	_, marked := answer.Marker()
	require.False(t, marked, "a peer without a marker is sent none")
}

// exchangeWithEcho sends random messages over p to a peer that echoes them, and fails the test
// unless each reply equals its message.
func exchangeWithEcho(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	for i := range 20 {
		sent := Generate(Shape{Seed: 30}, i)
		op := p.WriteAsync(testContext(t), sent.pipe())
		requireMessage(t, sent, p)
		require.NoError(t, op.Wait(testContext(t)))
	}
}

// frame removes the first frame of the handshake from captured and returns its body, which shares
// the memory of captured.
func frame(t *testing.T, captured *bytes.Buffer) []byte {
	t.Helper()
	size := int(binary.LittleEndian.Uint64(captured.Next(8)))
	require.LessOrEqual(t, size, captured.Len())
	return captured.Next(size)
}

// tap is a proxy between a client and a server. It captures the bytes of the first connection and
// forwards all connections.
type tap struct {
	net.Listener
	mu           sync.Mutex
	ours, theirs bytes.Buffer
	copying      sync.WaitGroup
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tap := &tap{Listener: l}
	tap.copying.Go(func() { tap.accept(server) })
	t.Cleanup(func() {
		l.Close()
		tap.copying.Wait()
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
		p.forward(up, client, ours)
		p.forward(client, up, theirs)
		ours, theirs = io.Discard, io.Discard
	}
}

func (p *tap) forward(dst, src net.Conn, copy io.Writer) {
	p.copying.Go(func() {
		// Bytes are captured before they are forwarded, hence before the reply to them.
		_, _ = io.Copy(io.MultiWriter(locked{copy, &p.mu}, dst), src) // both ends see errors themselves
		_ = dst.(*net.TCPConn).CloseWrite()
	})
}

// captured returns copies of the bytes that were forwarded so far: those from the client, and those
// from the server.
func (p *tap) captured() (ours, theirs *bytes.Buffer) {
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
