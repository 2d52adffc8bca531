package cma_test

import (
	"encoding/binary"
	"log/slog"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// open returns a new end over conns, and a channel that receives the error passed to Link.Broken.
// The end uses the native dialect if conns has one element, and otherwise the compatible one. It is
// closed at the end of the test.
func open(t testing.TB, conns []transport.Conn) (channel.Channel, <-chan error) {
	t.Helper()
	return openLink(t, channel.Link{Conns: conns})
}

// openLink returns a new end over link, and a channel that receives the error passed to
// Link.Broken. It sets the fields of its copy of link that tests do not set; the end uses the
// native dialect if there is one connection. The end is closed at the end of the test.
func openLink(t testing.TB, link channel.Link) (channel.Channel, <-chan error) {
	t.Helper()
	broken := make(chan error, 1)
	link.Native, link.Peer = len(link.Conns) == 1, "worker1"
	link.Broken = func(err error) { broken <- err }
	link.Logger = slog.New(slog.DiscardHandler)
	ch, err := cma.New(cma.Options{}).New(t.Context(), link, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, broken
}

func connections(t testing.TB, native bool) (near, far []transport.Conn) {
	t.Helper()
	connect := channeltest.Over(mem.New(nil), "")
	for range cma.New(cma.Options{}).Connections(native) {
		n, f := connect(t)
		near, far = append(near, n), append(far, f)
	}
	return near, far
}

// alone returns a new end, a channel that receives the error passed to Link.Broken, and the
// connections with which the test acts as the peer, in the order of Link.Conns.
func alone(t *testing.T, native bool) (ch channel.Channel, broken <-chan error, far []transport.Conn) {
	t.Helper()
	near, far := connections(t, native)
	ch, broken = open(t, near)
	return ch, broken, far
}

// pair returns the two connected ends of a new channel, and for each a channel that receives the
// error passed to Link.Broken.
func pair(t testing.TB, native bool) (from, to channel.Channel, fromBroken, toBroken <-chan error) {
	t.Helper()
	near, far := connections(t, native)
	from, fromBroken = open(t, near)
	to, toBroken = open(t, far)
	return from, to, fromBroken, toBroken
}

// result returns a done function for one transfer, and a channel that receives the error with which
// it is called.
func result() (done func(error), err <-chan error) {
	ch := make(chan error, 1)
	return func(err error) { ch <- err }, ch
}

func readFrame(t *testing.T, c transport.Conn) []byte {
	t.Helper()
	n, err := c.NextFrame()
	require.NoError(t, err)
	p := make([]byte, n)
	require.NoError(t, c.ReadBody(p))
	return p
}

func write(t *testing.T, c transport.Conn, frame []byte) {
	t.Helper()
	require.NoError(t, c.WriteFrames(transport.Frame{frame}))
}

func address(p []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&p[0]))) }

// announcement returns the body of a frame of the compatible dialect that announces a tensor at
// address in process pid.
func announcement(pid int, address uint64) []byte {
	text := binary.LittleEndian.AppendUint32([]byte{0xb9, 2, 0x82}, uint32(pid))
	return binary.LittleEndian.AppendUint64(append(text, 0x83), address)
}

// head returns the head of a frame of the native dialect, which is a whole frame unless kind is
// that of a description.
func head(kind byte, pid int, id uint64) []byte {
	text := binary.LittleEndian.AppendUint32([]byte{kind, 0, 0, 0}, uint32(pid))
	return binary.LittleEndian.AppendUint64(text, id)
}

func offer(pid int, id uint64, numbers ...uint64) []byte {
	text := head(1, pid, id)
	for _, n := range numbers {
		text = binary.LittleEndian.AppendUint64(text, n)
	}
	return text
}
