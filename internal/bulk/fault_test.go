package bulk_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// If the connection is cut after k bytes of three chunks, the complete chunks are received and all
// other transfers fail. A cut within a chunk gives another error than an end between two.
func TestCutWhileReceiving(t *testing.T) {
	sent := append(chunk(0, 1, []byte("hello"), 0, true), chunk(0, 2, []byte("wor"), 0, true)...)
	ends := map[int]bool{0: true, 29: true, 56: true, 82: true}
	sent = append(sent, chunk(0, 2, []byte("ld"), 0, true)...)
	require.Len(t, sent, 82)
	for k := range len(sent) + 1 {
		near, far := net.Pipe()
		e, peer := newEnd(t, plain{near}, bulk.Config{}), raw{t, plain{far}}
		ch := e.Lane(0)
		dst := [2][]byte{make([]byte, 5), make([]byte, 5)}
		outcomes := []<-chan error{recv(ch, 1, dst[0]), recv(ch, 2, dst[1]), recv(ch, 3, make([]byte, 1))}
		peer.write(sent[:k])
		require.NoError(t, far.Close())
		want := io.ErrUnexpectedEOF
		if ends[k] {
			want = io.EOF
		}
		require.ErrorIs(t, e.wantBroken(t), want, "cut at %d", k)
		for i, end := range []int{29, 82, 83} {
			err := testwait.Finish(t, outcomes[i])
			if k < end {
				require.ErrorIs(t, err, want)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []string{"hello", "world"}[i], string(dst[i]))
		}
		require.ErrorIs(t, testwait.Finish(t, recv(ch, 4, make([]byte, 1))), want)
		require.NoError(t, e.Close(nil))
	}
}

// If the peer closes the connection after it has read k bytes, transfers that were not sent
// completely fail.
func TestCutWhileSending(t *testing.T) {
	whole := len(chunk(0, 1, []byte("hello"), 0, false))
	for _, gathers := range []bool{false, true} {
		for k := range 2*whole + 1 {
			near, far := net.Pipe()
			e, peer := newEnd(t, plain{near}, bulk.Config{}), raw{t, plain{far}}
			if gathers {
				e = newEnd(t, gathering{plain{near}}, bulk.Config{})
			}
			ch := e.Lane(0)
			outcomes := []<-chan error{send(ch, 1, []byte("hello")), send(ch, 2, []byte("world"))}
			e.HandleReady(0, 1)
			e.HandleReady(0, 2)
			peer.read(k)
			require.NoError(t, far.Close())
			require.Error(t, e.wantBroken(t))
			for i, outcome := range outcomes {
				err := testwait.Finish(t, outcome)
				require.True(t, err != nil || k >= (i+1)*whole, "sent %d of %d", k, (i+1)*whole)
			}
		}
	}
}

// failingConn is a connection that fails after budget bytes.
type failingConn struct {
	net.Conn
	budget *atomic.Int64
}

func (m failingConn) Write(p []byte) (int, error) {
	for i := range p {
		if m.budget.Add(-1) < 0 {
			m.Close()
		}
		if _, err := m.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// If the connection fails at its k-th byte while two ends transfer in both directions on two lanes,
// every transfer completes at both ends, and all received tensors are correct.
func TestCutAtEveryByte(t *testing.T) {
	for _, gathers := range []bool{false, true} {
		for k := int64(0); ; k++ {
			if !cutAt(t, gathers, k) {
				break
			}
		}
	}
}

// cutAt runs transfers over a connection that fails after k bytes, and checks that each completes
// and that received tensors are correct. If gathers is true the streams are Gatherers. It reports
// whether the connection has failed.
func cutAt(t *testing.T, gathers bool, k int64) bool {
	var budget atomic.Int64
	budget.Store(k)
	near, far := net.Pipe()
	one, other := plain{failingConn{near, &budget}}, plain{failingConn{far, &budget}}
	a, b := pair(t, one, other, true)
	if gathers {
		a, b = pair(t, gathering{one}, gathering{other}, true)
	}
	var outcomes []<-chan error
	var dsts [][]byte
	for lane := range uint16(2) {
		for _, ch := range [][2]channel.Channel{{a.Lane(lane), b.Lane(lane)}} {
			for id := range uint64(2) {
				dst := [2][]byte{make([]byte, 9), make([]byte, 9)}
				outcomes = append(outcomes,
					send(ch[0], id, numbered(9)), send(ch[1], id, numbered(9)),
					recv(ch[1], id, dst[0]), recv(ch[0], id, dst[1]))
				dsts = append(dsts, nil, nil, dst[0], dst[1])
			}
		}
	}
	for i, outcome := range outcomes {
		if err := testwait.Finish(t, outcome); err == nil && dsts[i] != nil {
			wantBytes(t, numbered(9), dsts[i])
		}
	}
	require.NoError(t, a.Close(nil))
	require.NoError(t, b.Close(nil))
	return budget.Load() < 0
}
