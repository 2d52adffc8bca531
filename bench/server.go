package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// inlineBytes is the size up to which a message that needs no answer comes whole
// with its description, so that reading it waits for nothing.
const inlineBytes = 64 << 10

// server answers on one pipe.
type server struct {
	pipe    *pipe.Pipe
	memory  arena
	replies []*pipe.Message
	rooms   []pipe.Allocation
}

// serve answers until the client closes the pipe.
func serve(p *pipe.Pipe) error {
	s := &server{pipe: p}
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

// obey does what a batch needs and reports.
func (s *server) obey(o order) error {
	if err := s.prepare(o); err != nil {
		return err
	}
	before := cpuTime()
	if err := say(s.pipe, wordReady); err != nil {
		return err
	}
	if o.kind == kindEcho {
		if err := s.echo(o); err != nil {
			return err
		}
		return say(s.pipe, fmt.Sprint(wordChecked, " ", (cpuTime()-before).Nanoseconds()))
	}
	if err := s.sink(o); err != nil {
		return err
	}
	used := (cpuTime() - before).Nanoseconds()
	if err := say(s.pipe, fmt.Sprint(wordDone, " ", used)); err != nil {
		return err
	}
	if err := s.memory.check(o.messages, o.first); err != nil {
		return say(s.pipe, fmt.Sprint(wordError, " ", err))
	}
	return say(s.pipe, fmt.Sprint(wordChecked, " ", used))
}

// prepare makes all that the batch needs, so that serving it allocates nothing.
func (s *server) prepare(o order) error {
	if err := s.memory.resize(o.messages, o.size); err != nil {
		return err
	}
	s.replies, s.rooms = s.replies[:0], s.rooms[:0]
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

// sink reads all messages. Where reading a message means to wait for its bytes,
// several are read at once, as the C++ server does.
func (s *server) sink(o order) error {
	if o.size <= inlineBytes && o.named {
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
