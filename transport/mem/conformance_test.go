package mem_test

import (
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
)

func TestParity(t *testing.T) {
	network := mem.NewNetwork()
	transporttest.Run(t, transporttest.Backend{
		Name:    "mem",
		New:     func(*testing.T) transport.Transport { return mem.New(network) },
		DialRaw: mem.New(network).DialRaw,
		AppendHeader: func(dst []byte, size int) []byte {
			return binary.LittleEndian.AppendUint64(dst, uint64(size))
		},
	})
}

// TestAcceptServesInOrder checks that blocked calls of Accept return connections in the order of
// the calls. It runs in a synctest bubble, where synctest.Wait returns once a call is blocked.
func TestAcceptServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := mem.New(nil)
		l, err := tr.Listen(t.Context(), "")
		require.NoError(t, err)
		defer l.Close()
		var served []int
		for i := range 10 {
			go func() {
				if c, err := l.Accept(t.Context()); err == nil {
					c.Close()
					served = append(served, i)
				}
			}()
			synctest.Wait()
		}
		for range 10 {
			c, err := tr.Dial(t.Context(), l.Addr())
			require.NoError(t, err)
			defer c.Close()
			synctest.Wait()
		}
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, served)
	})
}
