package ring_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/ring"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

var sizes = []int{64, 4096, 2 << 20}

// total is the number of bytes that go through a ring of that size between processes. It
// is many times around the small one, but where other processes want the processors each
// time may take milliseconds.
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
	"teller":    tell,
	"scribbler": disturber,
	"echo":      echo,
	"sink":      sink,
}

func TestParityOfProcesses(t *testing.T) {
	parity.Case(t, "tensorpipe/common.ShmRingBuffer", func(t *testing.T) {
		t.Run("SameProducerConsumer", testSameProcess)
		t.Run("SingleProducer_SingleConsumer", testTwoProcesses)
	})
}

// The bytes of a producer whose mappings are gone are there for a consumer that maps
// the files again.
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
				done := patience.Start(func() error { return here(s) })
				require.NoError(t, patience.Finish(t, done))
				require.NoError(t, cmd.Wait())
				require.Zero(t, readable(t, s.Consumer()))
			})
		}
	}
}

// tokens is how many tokens each teller puts in.
const tokens = 20_000

// tell is one of several producers of one ring: it puts in its name and a number
// that counts.
func tell(name uint64) error {
	s, err := mapped(received)
	if err != nil {
		return err
	}
	p := s.Producer()
	for i := uint64(0); i < tokens; {
		err := tellOne(p, name<<32|i)
		switch {
		case err == nil:
			i++
		case errors.Is(err, ring.ErrBusy), errors.Is(err, ring.ErrShort):
			rest()
		default:
			return err
		}
	}
	return nil
}

func tellOne(p *ring.Producer, token uint64) error {
	if _, err := p.Free(); err != nil { // outside of the transaction, where others are at work
		return err
	}
	if err := p.Begin(); err != nil {
		return err
	}
	if err := p.WriteAll(binary.LittleEndian.AppendUint64(nil, token)); err != nil {
		return errors.Join(err, p.Cancel())
	}
	return p.Commit()
}

// Several processes put tokens into one ring: none is lost or torn, and those of
// each come in order.
func TestManyProducers(t *testing.T) {
	const tellers = 3
	s := newShared(t, 1024)
	for name := range uint64(tellers) {
		cmd := peer(t, "teller", name, s)
		require.NoError(t, cmd.Start())
		defer func() { require.NoError(t, cmd.Wait()) }()
	}
	heard := patience.Start(func() error { return listen(s.Consumer(), tellers) })
	require.NoError(t, patience.Finish(t, heard))
}

func listen(c *ring.Consumer, tellers int) error {
	counts := make([]uint32, tellers)
	if err := c.Begin(); err != nil {
		return err
	}
	for left := tellers * tokens; left > 0; {
		var token [8]byte
		err := c.ReadAll(token[:])
		if errors.Is(err, ring.ErrShort) {
			rest()
			continue
		}
		if err := errors.Join(err, c.Publish()); err != nil {
			return err
		}
		count, name := binary.LittleEndian.Uint32(token[:4]), binary.LittleEndian.Uint32(token[4:])
		if int(name) >= tellers || count != counts[name] {
			return fmt.Errorf("token %d of teller %d after %v", count, name, counts)
		}
		counts[name]++
		left--
	}
	return c.Cancel()
}

// disturber writes anything into a header until it is killed.
func disturber(seed uint64) error {
	s, err := mapped(received)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for {
		disturb(s.header.Bytes(), random)
	}
}

// disturb writes one field of a header: anything, or what is nearly right.
func disturb(header []byte, random *rand.Rand) {
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

// While another process scribbles over the header nothing happens but errors.
func TestScribblingPeer(t *testing.T) {
	s := newShared(t, 128)
	cmd := peer(t, "scribbler", 1, s)
	require.NoError(t, cmd.Start())
	end := patience.Start(func() error { return suffer(s.Ring) })
	require.NoError(t, patience.Finish(t, end))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
}

// suffer uses a ring until everything that can go wrong has gone wrong often.
func suffer(r *ring.Ring) error {
	const often = 1000
	seen := map[error]int{}
	p, c := r.Producer(), r.Consumer()
	for seen[nil] < often || seen[ring.ErrCorrupt] < often || seen[ring.ErrBusy] < often {
		seen[kind(try(&p.Side, p.Free))]++
		seen[kind(try(&c.Side, c.Readable))]++
		rest()
	}
	if len(seen) > 3 {
		return fmt.Errorf("unexpected errors in %v", seen)
	}
	return nil
}

// kind is the error that err matches.
func kind(err error) error {
	for _, k := range []error{ring.ErrCorrupt, ring.ErrBusy, ring.ErrShort, ring.ErrIdle, ring.ErrForm} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}

var errBounds = errors.New("more bytes than there can be")

// try makes all calls of a side of a ring of 128 bytes, and touches what it gets.
func try(s *ring.Side, ready func() (int, error)) error {
	_, err := ready()
	if begun := s.Begin(); begun != nil {
		return errors.Join(err, begun)
	}
	for _, n := range []int{1, 50, 1000} {
		i, e := ready()
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

// Memory that a peer takes away under a ring is an error, not the end.
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
