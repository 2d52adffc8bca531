package cma_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// recvOp makes a new end receive the bytes of memory, and returns the memory that it receives into
// and a channel for the outcome. The test is the peer; its description is valid while validity
// contains the number 5.
func recvOp(t *testing.T, f *cma.Factory, validity, memory []byte) (dst []byte, err <-chan error) {
	t.Helper()
	ch, far := endOf(t, f)
	dst = make([]byte, len(memory))
	done, err := result()
	ch.Recv(1, device.Bytes(dst), done)
	write(t, far, offer(os.Getpid(), 1, address(validity), 5, address(memory), uint64(len(memory))))
	return dst, err
}

// endOf returns a new end of f in the native dialect, and the connection with which the test acts
// as its peer.
func endOf(t *testing.T, f *cma.Factory) (channel.Channel, transport.Conn) {
	t.Helper()
	near, far := connections(t, true)
	ch, err := f.New(t.Context(), channel.Link{
		Native: true, Conns: near, Peer: "worker1", Broken: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}, channel.RoleConnect)
	require.NoError(t, err)
	t.Cleanup(func() { ch.Close(nil) })
	return ch, far[0]
}

// Peers whose memory blocks every read delay only the channels to them, even if there are more of
// them than workers.
func TestMemoryThatNeverArrives(t *testing.T) {
	const size = 8 << 20
	f := cma.New(cma.Options{Workers: 2})
	validity, src := cma.Mapped(t, 8), cma.Mapped(t, size)
	binary.NativeEndian.PutUint64(validity, 5)
	copy(src, "arrives")
	withheld := cma.Withhold(t, size)
	defer withheld.Release() // before the ends close, because Close waits for the copy
	var waiting []<-chan error
	for range 4 {
		_, err := recvOp(t, f, validity, withheld.Memory)
		waiting = append(waiting, err)
		dst, err := recvOp(t, f, validity, src) // keep one copy per end blocked
		require.NoError(t, <-err)
		require.Equal(t, "arrives", string(dst[:7]))
	}
	for _, err := range waiting {
		require.Empty(t, err)
	}
	withheld.Release()
	for _, err := range waiting {
		require.NoError(t, <-err)
	}
}

// Sizes of tensors: copied by the reading goroutine, and by the copy pool.
const (
	small = 100 << 10
	large = 1 << 20
)

// offering is an end that receives, and a peer whose memory is present.
type offering struct {
	ch            channel.Channel
	far           transport.Conn
	validity, src []byte
	id            uint64 // of the last description
}

func newOffering(t *testing.T) *offering {
	t.Helper()
	p := &offering{validity: cma.Mapped(t, 8), src: cma.Mapped(t, large)}
	binary.NativeEndian.PutUint64(p.validity, 5)
	p.ch, p.far = endOf(t, cma.New(cma.Options{Workers: 4}))
	return p
}

// offer makes the end p.ch receive size bytes from src, with the test as the sender, and returns a
// channel for the outcome. The description is valid while validity contains the number 5.
func (p *offering) offer(t *testing.T, validity, src []byte, size int) <-chan error {
	t.Helper()
	p.id++
	done, err := result()
	p.ch.Recv(p.id, device.Bytes(make([]byte, size)), done)
	write(t, p.far, offer(os.Getpid(), p.id, address(validity), 5, address(src), uint64(size)))
	return err
}

// require makes the end p.ch receive one tensor of each of sizes, from memory that does not block,
// one after the other. It fails the test if one does not arrive.
func (p *offering) require(t *testing.T, sizes ...int) {
	t.Helper()
	for _, size := range sizes {
		require.NoError(t, testwait.Finish(t, p.offer(t, p.validity, p.src, size)))
	}
}

// A tensor whose memory or validity word blocks every read, small or large, does not delay the
// other tensors of its channel. It completes when the reads continue or, if the description was
// revoked, when it is aborted.
func TestTransfersAfterMemoryThatNeverArrives(t *testing.T) {
	for name, size := range map[string]int{"small": small, "large": large} {
		for _, what := range []string{"tensor", "word"} {
			t.Run(name+"/"+what, func(t *testing.T) {
				p := newOffering(t)
				withheld := cma.Withhold(t, large)
				defer withheld.Release() // before the end closes, because Close waits for the copy
				validity, src := p.validity, withheld.Memory
				if what == "word" {
					validity, src = withheld.Memory, p.src
				}
				var waiting []<-chan error
				var ids []uint64
				for range 2 {
					waiting, ids = append(waiting, p.offer(t, validity, src, size)), append(ids, p.id)
					withheld.Touched(t)
					p.require(t, small, large, small)
				}
				for _, err := range waiting {
					require.Empty(t, err)
				}
				withheld.Release()
				enough := errors.New("enough")
				for i, err := range waiting {
					if what == "tensor" {
						require.NoError(t, testwait.Finish(t, err))
						continue
					}
					p.ch.Abort(ids[i], enough) // it has been revoked
					require.Equal(t, enough, testwait.Finish(t, err))
				}
				p.require(t, small)
			})
		}
	}
}

// A small tensor whose copy is in progress when it is aborted, or when the channel is closed,
// completes without error once all bytes are copied. After an Abort it is also confirmed to the
// peer.
func TestCopiedTensorIsDelivered(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprint("closes=", closes), func(t *testing.T) {
			p := newOffering(t)
			withheld := cma.Withhold(t, large)
			defer withheld.Release() // before the end closes, because Close waits for the copy
			err := p.offer(t, p.validity, withheld.Memory, small)
			withheld.Touched(t)
			ended := make(chan error, 1)
			if closes {
				go func() { ended <- p.ch.Close(io.ErrNoProgress) }()
				_, end := p.far.NextFrame()
				require.Error(t, end)
			} else {
				p.ch.Abort(p.id, io.ErrNoProgress)
			}
			require.Empty(t, err)
			withheld.Release()
			require.NoError(t, testwait.Finish(t, err))
			if closes {
				require.NoError(t, testwait.Finish(t, ended))
				return
			}
			require.Equal(t, head(3, 0, p.id), readFrame(t, p.far))
			p.require(t, small)
		})
	}
}
