package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// The sizes up to which the native dialect has a tensor in the message itself: over
// TCP, and through shared memory.
const (
	inlineBytes = 64 << 10
	ringBytes   = 1 << 20
)

// server answers on one pipe.
type server struct {
	pipe    *pipe.Pipe
	lender  *arenas
	memory  *arena // while a batch lasts
	replies []*pipe.Message
	rooms   []pipe.Allocation
}

// serve answers until the client closes the pipe.
func serve(p *pipe.Pipe, lender *arenas) error {
	s := &server{pipe: p, lender: lender}
	for {
		words, err := hear(p)
		if errors.Is(err, pipe.ErrPeerClosed) {
			return p.Close()
		}
		if err != nil {
			return err
		}
		o, err := parseOrder(words)
		if err != nil {
			return err
		}
		if err := s.obey(o); err != nil {
			return err
		}
	}
}

// obey does what a batch needs and reports. After an error the pipe may still
// use the arena.
func (s *server) obey(o order) error {
	s.memory = s.lender.take()
	if err := s.prepare(o); err != nil {
		return err
	}
	if err := s.work(o); err != nil {
		return err
	}
	s.lender.give(s.memory)
	s.memory, s.replies, s.rooms = nil, nil, nil
	return nil
}

func (s *server) work(o order) error {
	before := cpuTime()
	if err := say(s.pipe, wordReady); err != nil {
		return err
	}
	serve := s.echo
	if o.kind == kindSink {
		serve = s.sink
	}
	if err := serve(o); err != nil {
		return err
	}
	if err := say(s.pipe, fmt.Sprint(wordDone, " ", (cpuTime()-before).Nanoseconds())); err != nil || o.kind == kindEcho {
		return err
	}
	return s.check(o)
}

// check looks at what came, when the client's clock stands.
func (s *server) check(o order) error {
	if err := expect(s.pipe, wordCheck); err != nil {
		return err
	}
	if err := s.memory.check(o.messages, o.first); err != nil {
		return say(s.pipe, fmt.Sprint(wordError, " ", err))
	}
	return say(s.pipe, wordChecked)
}

// prepare makes all that the batch needs, so that serving it allocates nothing.
func (s *server) prepare(o order) error {
	if err := s.memory.resize(o.messages, o.size); err != nil {
		return err
	}
	for i := range o.messages {
		s.replies = append(s.replies, s.memory.message(i, o.named))
		s.rooms = append(s.rooms, s.memory.room(i))
	}
	return nil
}

func (s *server) echo(o order) error {
	for i := range o.messages {
		if err := s.read(i); err != nil {
			return err
		}
		if err := s.pipe.Write(context.Background(), s.replies[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) read(i int) error {
	in, err := s.pipe.Next(context.Background())
	if err != nil {
		return err
	}
	return take(in, s.rooms[i])
}

// take reads a message and makes its Incoming one for another message.
func take(in *pipe.Incoming, room pipe.Allocation) error {
	err := in.Read(context.Background(), room)
	if err == nil {
		in.Release()
	}
	return err
}

// comesUnasked reports whether the bytes of a message come behind its
// description without an answer of the reader.
func (s *server) comesUnasked(o order) bool {
	switch plan := s.pipe.Plan(); {
	case plan.Dialect == pipe.DialectNative && plan.Transport == shm.Name:
		return o.size <= ringBytes
	case plan.Dialect == pipe.DialectNative:
		return o.size <= inlineBytes
	}
	return o.size == 0 || o.named && o.size <= inlineBytes
}

// sink reads all messages. Where reading a message means to ask for its bytes,
// several are read at once, as the C++ server does.
func (s *server) sink(o order) error {
	if s.comesUnasked(o) {
		for i := range o.messages {
			if err := s.read(i); err != nil {
				return err
			}
		}
		return nil
	}
	var (
		readers sync.WaitGroup
		turn    sync.Mutex
		begun   int
		errs    = make([]error, min(o.depth, o.messages))
	)
	next := func() (*pipe.Incoming, int, error) {
		turn.Lock()
		defer turn.Unlock()
		if begun == o.messages {
			return nil, 0, nil
		}
		in, err := s.pipe.Next(context.Background())
		begun++
		return in, begun - 1, err
	}
	for r := range errs {
		readers.Go(func() { errs[r] = s.readAll(next) })
	}
	readers.Wait()
	return errors.Join(errs...)
}

// readAll reads what next gives until there is nothing more.
func (s *server) readAll(next func() (*pipe.Incoming, int, error)) error {
	for {
		in, i, err := next()
		if in == nil || err != nil {
			return err
		}
		if err := take(in, s.rooms[i]); err != nil {
			return err
		}
	}
}
