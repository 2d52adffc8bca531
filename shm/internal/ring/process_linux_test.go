package ring_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

var sizes = []int{64, 4096, 2 << 20}

// total returns the number of bytes that pass through a ring of that size between processes: many
// times its size, but not too many for a small one, since each turn may take milliseconds on a busy
// machine.
func total(size uint64) int { return int(min(4<<20, 2048*size)) }

var peers = map[string]func(arg uint64) error{
	"producer": func(size uint64) error {
		s, err := mapped(received)
		if err != nil {
			return err
		}
		return produce(s.Ring, newStream(size, 1), total(size))
	},
	"consumer": func(size uint64) error {
		s, err := mapped(received)
		if err != nil {
			return err
		}
		return consume(s.Ring, newStream(size, 2), total(size))
	},
	"teller":    produceRecords,
	"scribbler": scribbler,
	"echo":      echo,
	"sink":      sink,
}

func TestParityOfProcesses(t *testing.T) {
	parity.Case(t, "tensorpipe/common.ShmRingBuffer", func(t *testing.T) {
		t.Run("SameProducerConsumer", testSameProcess)
		t.Run("SingleProducer_SingleConsumer", testTwoProcesses)
	})
}

// Bytes that were written to a ring can be read by a consumer that maps its files again, after the
// producer's mappings are gone.
func testSameProcess(t *testing.T) {
	const count = 2000
	s := newShared(t, 256<<10)
	p := s.Producer()
	for i := range uint32(count) {
		put(t, p, string(binary.NativeEndian.AppendUint32(nil, i)))
	}
	header, data := duplicate(t, s.header.File()), duplicate(t, s.data.File())
	require.NoError(t, errors.Join(s.header.Close(), s.data.Close()))

	other, err := mapFiles(header, data)
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(other.header.Close(), other.data.Close())) }()
	c := other.Consumer()
	for i := range uint32(count) {
		require.Equal(t, string(binary.NativeEndian.AppendUint32(nil, i)), get(t, c, 4))
	}
	require.Zero(t, readable(t, c))
}

// Every byte arrives, in pieces of random sizes, in both directions.
func testTwoProcesses(t *testing.T) {
	for _, size := range sizes {
		seed, all := uint64(size), total(uint64(size))
		for name, here := range map[string]func(*shared) error{
			"producer": func(s *shared) error { return consume(s.Ring, newStream(seed, 3), all) },
			"consumer": func(s *shared) error { return produce(s.Ring, newStream(seed, 4), all) },
		} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				s := newShared(t, size)
				cmd := peer(t, name, seed, s)
				require.NoError(t, cmd.Start())
				done := testwait.Start(func() error { return here(s) })
				require.NoError(t, testwait.Finish(t, done))
				require.NoError(t, cmd.Wait())
				require.Zero(t, readable(t, s.Consumer()))
			})
		}
	}
}

// records is the number of records that each producer writes.
const records = 20_000

// produceRecords is one of several child processes that write to a ring: it writes records that
// consist of name and a counter. It retries while the ring is full or busy.
func produceRecords(name uint64) error {
	s, err := mapped(received)
	if err != nil {
		return err
	}
	p := s.Producer()
	for i := uint64(0); i < records; {
		err := produceRecord(p, name<<32|i)
		switch {
		case err == nil:
			i++
		case errors.Is(err, ring.ErrBusy), errors.Is(err, ring.ErrShort):
			yield()
		default:
			return err
		}
	}
	return nil
}

func produceRecord(p *ring.Producer, record uint64) error {
	if _, err := p.Free(); err != nil { // outside of the transaction, where others are at work
		return err
	}
	if err := p.Begin(); err != nil {
		return err
	}
	if err := p.WriteAll(binary.LittleEndian.AppendUint64(nil, record)); err != nil {
		return errors.Join(err, p.Cancel())
	}
	return p.Commit()
}

// If several processes write records to one ring, none is lost or torn, and those of each process
// arrive in order.
func TestManyProducers(t *testing.T) {
	const producers = 3
	s := newShared(t, 1024)
	for name := range uint64(producers) {
		cmd := peer(t, "teller", name, s)
		require.NoError(t, cmd.Start())
		defer func() { require.NoError(t, cmd.Wait()) }()
	}
	seen := testwait.Start(func() error { return consumeRecords(s.Consumer(), producers) })
	require.NoError(t, testwait.Finish(t, seen))
}

func consumeRecords(c *ring.Consumer, producers int) error {
	counts := make([]uint32, producers)
	if err := c.Begin(); err != nil {
		return err
	}
	for left := producers * records; left > 0; {
		var record [8]byte
		err := c.ReadAll(record[:])
		if errors.Is(err, ring.ErrShort) {
			yield()
			continue
		}
		if err := errors.Join(err, c.Publish()); err != nil {
			return err
		}
		count, name := binary.LittleEndian.Uint32(record[:4]), binary.LittleEndian.Uint32(record[4:])
		if int(name) >= producers || count != counts[name] {
			return fmt.Errorf("token %d of teller %d after %v", count, name, counts)
		}
		counts[name]++
		left--
	}
	return c.Cancel()
}

// scribbler is a child process that overwrites the header of a ring at random until it is killed.
func scribbler(seed uint64) error {
	s, err := mapped(received)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for {
		scribble(s.header.Bytes(), random)
	}
}

// scribble overwrites a random field of a ring's header with a random value, or with a small one
// that is nearly valid.
func scribble(header []byte, random *rand.Rand) {
	at := 8 * random.IntN(ring.HeaderSize/8)
	value := random.Uint64()
	if random.IntN(2) == 0 {
		value = uint64(random.IntN(200)) - 50
	}
	if at == 16 {
		value &= 0x0101
	}
	binary.NativeEndian.PutUint64(header[at:], value)
}

// While another process overwrites the header, calls return errors of this package, and only bytes
// within the ring.
func TestScribblingPeer(t *testing.T) {
	s := newShared(t, 128)
	cmd := peer(t, "scribbler", 1, s)
	require.NoError(t, cmd.Start())
	end := testwait.Start(func() error { return provokeErrors(s.Ring) })
	require.NoError(t, testwait.Finish(t, end))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
}

// provokeErrors uses r until calls have succeeded, found a corrupt header and found a busy ring
// often enough. It returns an error if a call has returned any other error.
func provokeErrors(r *ring.Ring) error {
	const often = 1000
	seen := map[error]int{}
	p, c := r.Producer(), r.Consumer()
	for seen[nil] < often || seen[ring.ErrCorrupt] < often || seen[ring.ErrBusy] < often {
		seen[kind(callAll(&p.End, p.Free))]++
		seen[kind(callAll(&c.End, c.Readable))]++
		yield()
	}
	if len(seen) > 3 {
		return fmt.Errorf("unexpected errors in %v", seen)
	}
	return nil
}

// kind returns the error variable of package ring that err matches, or err itself, which may be
// nil, if it matches none.
func kind(err error) error {
	for _, k := range []error{ring.ErrCorrupt, ring.ErrBusy, ring.ErrShort, ring.ErrIdle, ring.ErrForm} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}

var errBounds = errors.New("more bytes than there can be")

// callAll makes all calls of one end of a ring of 128 bytes in a transaction, overwrites the bytes
// that Next returns, and joins the errors. It returns errBounds if a result exceeds the ring.
// available is Free or Readable of that end.
func callAll(s *ring.End, available func() (int, error)) error {
	_, err := available()
	if begun := s.Begin(); begun != nil {
		return errors.Join(err, begun)
	}
	for _, n := range []int{1, 50, 1000} {
		i, e := available()
		err = errors.Join(err, e)
		first, second, e := s.Next(n)
		err = errors.Join(err, e)
		if i < 0 || i > 128 || len(first)+len(second) > min(n, 128) {
			return errBounds
		}
		clear(first)
		clear(second)
	}
	return errors.Join(err, s.Publish(), s.Commit())
}

// An access to a ring that a peer has truncated is an error, within segment.Guard.
func TestShrunkRing(t *testing.T) {
	for name, shrink := range map[string]func(s *shared) *segment.Segment{
		"header": func(s *shared) *segment.Segment { return s.header },
		"data":   func(s *shared) *segment.Segment { return s.data },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShared(t, 4096)
			p := s.Producer()
			write := func() error {
				return segment.Guard(func() error {
					_, err := produceSome(p, []byte("some bytes"), 0)
					return err
				}, s.header.Bytes(), s.data.Bytes())
			}
			require.NoError(t, write())
			require.NoError(t, shrink(s).File().Truncate(0))
			require.ErrorIs(t, write(), segment.ErrFault)
		})
	}
}
