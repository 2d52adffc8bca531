package bulk_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// depth is the number of tensors that a benchmark has in progress.
const depth = 4

// warmUp is the number of tensors before the clock starts. When the last of them
// sets out the first depth have arrived, and all memory has been touched.
const warmUp = 2 * depth

// BenchmarkOneWay sends tensors to another process: through a Mover, with and
// without checksums, and for comparison by writing them to a socket.
func BenchmarkOneWay(b *testing.B) {
	for _, mib := range []int{1, 16, 64} {
		for _, how := range []string{"bare", "bulk", "summed"} {
			b.Run(fmt.Sprintf("%dMiB/%s", mib, how), func(b *testing.B) { oneWay(b, how, mib<<20) })
		}
	}
}

func oneWay(b *testing.B, how string, size int) {
	data, control := startPeer(b, how, size)
	var buffers [depth][]byte
	for i := range buffers {
		buffers[i] = make([]byte, size)
		clear(buffers[i])
	}
	send := bareSender(b, data)
	if how != "bare" {
		send = bulkSender(b, data, control, how == "summed")
	}
	for i := range warmUp {
		send(buffers[i%depth])
	}
	b.SetBytes(int64(size))
	before := cpu()
	for i := 0; b.Loop(); i++ {
		send(buffers[i%depth])
	}
	b.ReportMetric((cpu()-before).Seconds()*1e9/float64(b.N)/float64(size), "cpu-s/GB")
}

func bareSender(b *testing.B, data *net.TCPConn) func([]byte) {
	return func(p []byte) {
		_, err := data.Write(p)
		require.NoError(b, err)
	}
}

// bulkSender returns a function that sends its argument as a tensor through a Mover on data, and
// blocks while as many tensors as depth are under way. For each tensor it writes a byte to control,
// in place of the message that the tensor would belong to.
func bulkSender(b *testing.B, data, control *net.TCPConn, checksum bool) func([]byte) {
	m := bulk.New(bulk.Config{
		Open:     func(context.Context) (transport.Stream, error) { return socket{data}, nil },
		Broken:   func(error) {},
		Checksum: checksum,
	})
	b.Cleanup(func() { m.Close(nil) })
	go func() {
		var id [8]byte
		for {
			if _, err := io.ReadFull(control, id[:]); err != nil {
				return
			}
			m.HandleReady(0, binary.LittleEndian.Uint64(id[:]))
		}
	}()
	free := make(chan error, depth)
	for range depth {
		free <- nil
	}
	ch := m.Lane(0)
	var id uint64
	return func(p []byte) {
		require.NoError(b, <-free)
		ch.Send(id, device.Bytes(p), func(err error) { free <- err })
		id++
		_, err := control.Write([]byte{0})
		require.NoError(b, err)
	}
}

// socket is a TCP connection as transports hand it over.
type socket struct{ *net.TCPConn }

func (s socket) TryWrite(...[]byte) (int, error) { return 0, nil }

func (s socket) WriteBuffers(p *net.Buffers) (int64, error) { return p.WriteTo(s.TCPConn) }

// peerVar passes to a child process how to receive, the size, and an address.
const peerVar = "BULK_PEER"

// startPeer starts the receiving process for tensors of that size, and returns the two connections
// to it. When the benchmark ends, it reports the processor time of that process.
func startPeer(b *testing.B, how string, size int) (data, control *net.TCPConn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", peerVar, how, size, l.Addr()))
	cmd.Stderr = os.Stderr
	require.NoError(b, cmd.Start())
	var conns [2]*net.TCPConn
	for i := range conns {
		c, err := l.Accept()
		require.NoError(b, err)
		conns[i] = c.(*net.TCPConn)
	}
	b.Cleanup(func() {
		conns[0].Close()
		conns[1].Close()
		require.NoError(b, cmd.Wait())
		b.ReportMetric(float64(cmd.ProcessState.SystemTime()+cmd.ProcessState.UserTime())/float64(b.N+warmUp)/float64(size), "peer-cpu-s/GB")
	})
	return conns[0], conns[1]
}

// receive is the receiving process. order is how it receives ("bare" for a plain socket), the size
// of a tensor, and the address to which it dials.
func receive(order string) {
	var how, addr string
	var size int
	fmt.Sscan(order, &how, &size, &addr)
	var conns [2]*net.TCPConn
	for i := range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			panic(err)
		}
		conns[i] = c.(*net.TCPConn)
	}
	if how == "bare" {
		receiveBare(conns[0], size)
	} else {
		receiveBulk(conns[0], conns[1], size)
	}
}

func receiveBare(data net.Conn, size int) {
	var buffers [depth][]byte
	for i := range buffers {
		buffers[i] = make([]byte, size)
	}
	for i := 0; ; i++ {
		if _, err := io.ReadFull(data, buffers[i%depth]); err != nil {
			return
		}
	}
}

func receiveBulk(data, control *net.TCPConn, size int) {
	m := bulk.New(bulk.Config{
		Open: func(context.Context) (transport.Stream, error) { return socket{data}, nil },
		Ready: func(_ uint16, id uint64) {
			_, _ = control.Write(binary.LittleEndian.AppendUint64(nil, id))
		},
		Broken: func(error) {},
	})
	defer m.Close(nil)
	ch := m.Lane(0)
	free := make(chan []byte, depth)
	for range depth {
		free <- make([]byte, size)
	}
	var told [1]byte
	for id := uint64(0); ; id++ {
		p := <-free
		if _, err := io.ReadFull(control, told[:]); err != nil {
			return
		}
		ch.Recv(id, device.Bytes(p), func(error) { free <- p })
	}
}

// cpu returns the processor time that this process has used, in user mode and in the kernel.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
