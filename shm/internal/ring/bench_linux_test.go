package ring_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ring"
)

// inbox is the size of TensorPipe's rings between two processes.
const inbox = 2 << 20

// last begins the last message of a benchmark.
const last = 0xff

// newMover returns a function that moves all of p by calls of move, which reads or writes at side.
// Each call is in a transaction of its own, within segment.Guard. While move moves nothing, the
// function yields the processor.
func newMover(side *ring.End, move func([]byte) (int, error)) func(p []byte) error {
	return func(p []byte) error {
		for len(p) > 0 {
			n := 0
			err := segment.Guard(func() (err error) {
				if err := side.Begin(); err != nil {
					return err
				}
				n, err = move(p)
				return errors.Join(err, side.Commit())
			})
			if err != nil {
				return err
			}
			p = p[n:]
			if n == 0 {
				yield()
			}
		}
		return nil
	}
}

func writer(r *ring.Ring) func([]byte) error { p := r.Producer(); return newMover(&p.End, p.Write) }

func reader(r *ring.Ring) func([]byte) error { c := r.Consumer(); return newMover(&c.End, c.Read) }

// echo is the child process of round trips: it reads messages of that size from the first ring and
// writes them to the second one, until a message begins with the byte last.
func echo(size uint64) error {
	in, err := mapped(received)
	if err != nil {
		return err
	}
	out, err := mapped(received + 2)
	if err != nil {
		return err
	}
	read, write := reader(in.Ring), writer(out.Ring)
	for p := make([]byte, size); ; {
		if err := read(p); err != nil || p[0] == last {
			return err
		}
		if err := write(p); err != nil {
			return err
		}
	}
}

// sink is the child process of one-way transfers: it reads messages of that size until one begins
// with the byte last.
func sink(size uint64) error {
	in, err := mapped(received)
	if err != nil {
		return err
	}
	read := reader(in.Ring)
	for p := make([]byte, size); p[0] != last; {
		if err := read(p); err != nil {
			return err
		}
	}
	return nil
}

// startPeer starts a child process in the role name on the rings, and returns a function that
// writes a message to the first ring. At the end of the benchmark it writes a message that begins
// with the byte last, and waits until the child exits.
func startPeer(b *testing.B, name string, size int, rings ...*shared) (write func([]byte) error) {
	cmd := peer(b, name, uint64(size), rings...)
	require.NoError(b, cmd.Start())
	write = writer(rings[0].Ring)
	b.Cleanup(func() {
		end := make([]byte, size)
		end[0] = last
		require.NoError(b, write(end))
		require.NoError(b, cmd.Wait())
	})
	return write
}

// BenchmarkRoundTrip measures round trips with another process. Both spin.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{8, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			there, back := newShared(b, inbox), newShared(b, inbox)
			write, read := startPeer(b, "echo", size, there, back), reader(back.Ring)
			p := make([]byte, size)
			for b.Loop() {
				if err := errors.Join(write(p), read(p)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOneWay measures the throughput to another process, and that of a copy within this one.
// The messages fit into a cache.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		p, q := make([]byte, size), make([]byte, size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			write := startPeer(b, "sink", size, newShared(b, inbox))
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := write(p); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint(size, " memcpy"), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(q, p)
			}
		})
	}
}

// BenchmarkTransactions measures a transaction that writes 8 bytes and one that reads them, in one
// process.
func BenchmarkTransactions(b *testing.B) {
	for name, call := range map[string]func(func() error, ...[]byte) error{"bare": nil, "guarded": segment.Guard} {
		b.Run(name, func(b *testing.B) {
			exchange := exchanger(newShared(b, inbox).Ring)
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if call == nil {
					err = exchange()
				} else {
					err = call(exchange)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// exchanger returns a function that writes 8 bytes to r in one transaction and reads them in
// another.
func exchanger(r *ring.Ring) func() error {
	p, c := r.Producer(), r.Consumer()
	var record [8]byte
	return func() error {
		return errors.Join(
			p.Begin(), p.WriteAll(record[:]), p.Commit(),
			c.Begin(), c.ReadAll(record[:]), c.Commit())
	}
}

func TestMovesAllocateNothing(t *testing.T) {
	exchange := exchanger(newShared(t, 64).Ring)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := segment.Guard(exchange); err != nil {
			t.Error(err)
		}
	}))
}
