package cma_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// receiving makes a new end receive memory of the test, of which the offer holds as
// long as the word is 5.
func receiving(t *testing.T, f *cma.Factory, word, memory []byte) (dst []byte, err <-chan error) {
	t.Helper()
	ch, far := endOf(t, f)
	dst = make([]byte, len(memory))
	done, err := result()
	ch.Recv(1, device.Bytes(dst), done)
	write(t, far, offer(os.Getpid(), 1, address(word), 5, address(memory), uint64(len(memory))))
	return dst, err
}

// endOf makes an end of the native dialect.
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

// Peers whose memory never arrives keep nobody but the channels to them waiting,
// however many they are.
func TestMemoryThatNeverArrives(t *testing.T) {
	const size = 8 << 20
	f := cma.New(cma.Options{Workers: 2})
	word, src := cma.Mapped(t, 8), cma.Mapped(t, size)
	binary.NativeEndian.PutUint64(word, 5)
	copy(src, "arrives")
	withheld := cma.Withhold(t, size)
	defer withheld.Release() // before the ends close, which wait for it
	var waiting []<-chan error
	for range 4 {
		_, err := receiving(t, f, word, withheld.Memory)
		waiting = append(waiting, err)
		dst, err := receiving(t, f, word, src) // while that one takes what it can get
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

// Sizes of tensors: of one that the goroutine copies which reads the offers, and of one
// for the workers.
const (
	small = 100 << 10
	large = 1 << 20
)

// offering is an end that receives, and a peer with memory that is there.
type offering struct {
	ch        channel.Channel
	far       transport.Conn
	word, src []byte
	id        uint64 // of the last offer
}

func newOffering(t *testing.T) *offering {
	t.Helper()
	p := &offering{word: cma.Mapped(t, 8), src: cma.Mapped(t, large)}
	binary.NativeEndian.PutUint64(p.word, 5)
	p.ch, p.far = endOf(t, cma.New(cma.Options{Workers: 4}))
	return p
}

// offer has a tensor of that size received that lies in src.
func (p *offering) offer(t *testing.T, word, src []byte, size int) <-chan error {
	t.Helper()
	p.id++
	done, err := result()
	p.ch.Recv(p.id, device.Bytes(make([]byte, size)), done)
	write(t, p.far, offer(os.Getpid(), p.id, address(word), 5, address(src), uint64(size)))
	return err
}

// require receives tensors that arrive.
func (p *offering) require(t *testing.T, sizes ...int) {
	t.Helper()
	for _, size := range sizes {
		require.NoError(t, patience.Finish(t, p.offer(t, p.word, p.src, size)))
	}
}

// A tensor of which the memory never arrives, or the word that says whether it still
// holds, keeps no other one of its channel waiting, be it small or large.
func TestOthersBehindMemoryThatNeverArrives(t *testing.T) {
	for name, size := range map[string]int{"small": small, "large": large} {
		for _, what := range []string{"tensor", "word"} {
			t.Run(name+"/"+what, func(t *testing.T) {
				p := newOffering(t)
				withheld := cma.Withhold(t, large)
				defer withheld.Release() // before the end closes, which waits for it
				word, src := p.word, withheld.Memory
				if what == "word" {
					word, src = withheld.Memory, p.src
				}
				var waiting []<-chan error
				var ids []uint64
				for range 2 {
					waiting, ids = append(waiting, p.offer(t, word, src, size)), append(ids, p.id)
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
						require.NoError(t, patience.Finish(t, err))
						continue
					}
					p.ch.Abort(ids[i], enough) // it does not hold
					require.Equal(t, enough, patience.Finish(t, err))
				}
				p.require(t, small)
			})
		}
	}
}
