package samehost_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// crowdPart begins the part of a child that is one of many.
const crowdPart = "crowd"

// What members say: that all their pipes are open, and why not. First they say where
// they listen.
const (
	connected = "connected"
	unhappy   = "unhappy: "
)

// manner is how the members of a crowd come together.
type manner struct {
	size  int           // of the crowd
	dials int           // how many members one dials at a time
	limit time.Duration // of a handshake, and of the greeting; 0 leaves the options alone
}

const (
	patient = "patient" // there are as many as can be: it is about their number, not about their time
	usual   = "usual"   // as an application does it: with default options, and all at once
)

// manners has those of both. With few at a time the clock of a handshake times that
// one and not all of them.
var manners = map[string]manner{
	patient: {size: crowdSize, dials: 4, limit: time.Minute},
	usual:   {size: usualSize, dials: usualSize},
}

// Every process of a crowd has a pipe over shared memory to every other one, all at
// the same time, and each pipe has carried a tensor both ways before the first is
// closed.
func TestCrowdFullyConnected(t *testing.T) { connectCrowd(t, patient) }

// A smaller one needs no options for that, and nobody who takes turns.
func TestCrowdOnDefaultOptions(t *testing.T) { connectCrowd(t, usual) }

func connectCrowd(t *testing.T, name string) {
	size := manners[name].size
	c := newCrowd(t, size, name)
	urls := c.hear(shm.Name + "://")
	told := time.Now()
	c.tell(func(i int) string { return strings.Join(urls[:i], " ") })
	c.hear(connected)
	t.Logf("%d processes have opened %d pipes in %v", size, size*(size-1)/2, time.Since(told))
	told = time.Now()
	c.tell(func(int) string { return "close" })
	c.hear(wellEnded)
	t.Logf("and have closed them in %v", time.Since(told))
}

// playCrowd is the life of one of many: it listens, says where, reads whom to dial,
// and accepts the others.
func playCrowd(part string) error {
	explainOnQuit()
	var number int
	var name string
	if _, err := fmt.Sscan(part, &number, &name); err != nil {
		return err
	}
	with := manners[name]
	o := everythingOptions(fmt.Sprint("member ", number), pipe.DialectNative, shm.Name, cma.New(cma.Options{}))
	if with.limit > 0 {
		o.HandshakeTimeout, o.CloseTimeout = with.limit, 2*crowdLimit // what does not close is to be seen
	}
	c, err := pipe.New(o)
	if err != nil {
		return err
	}
	l, err := c.Listen(context.Background(), "shm://")
	if err != nil {
		return err
	}
	fmt.Println(l.URLs()[0])
	said := bufio.NewScanner(os.Stdin)
	if !said.Scan() {
		return said.Err()
	}
	m := &meeter{manner: with, context: c, listener: l, number: number}
	if err := m.meetAll(strings.Fields(said.Text())); err != nil {
		return err // not after a graceful close, for which the others would wait
	}
	fmt.Println(connected)
	said.Scan() // the pipes stay until all are there
	return c.Close()
}

// meeter opens the pipes of one member.
type meeter struct {
	manner
	context  *pipe.Context
	listener *pipe.Listener
	number   int
	met      sync.Map // by name
	grumble  sync.Once
	greeted  atomic.Int32
}

// meetAll opens a pipe to each of the others, of which it dials the lower ones, and
// greets it. At the first that fails it gives up.
func (m *meeter) meetAll(lower []string) error {
	limited, cancel := context.WithTimeout(context.Background(), 2*crowdLimit) // if nobody is there to end it
	defer cancel()
	ctx, giveUp := context.WithCancelCause(limited)
	defer giveUp(nil)
	meet := func(p *pipe.Pipe, err error) {
		if err == nil {
			err = m.greet(ctx, p)
		}
		if err != nil {
			m.grumble.Do(func() { fmt.Println(unhappy + strings.ReplaceAll(err.Error(), "\n", " ")) })
			giveUp(err) // not before it was said: the others hear of it
		}
	}
	todo := make(chan string, len(lower))
	for _, url := range slices.Backward(lower) { // not all the same one first
		todo <- url
	}
	close(todo)
	var meetings sync.WaitGroup
	for range m.dials {
		meetings.Go(func() {
			for url := range todo {
				meet(m.context.Dial(ctx, url))
			}
		})
	}
	for range m.size - 1 - len(lower) {
		meetings.Go(func() { meet(m.listener.Accept(ctx)) })
	}
	meetings.Wait()
	return context.Cause(ctx)
}

// carried is how many tensors of each process are large enough for a channel to carry
// them; all of them would take minutes.
const carried = 8

// tensorFor is the memory of a tensor, of a process's number again and again.
func (m *meeter) tensorFor(word []byte) []byte {
	size := 100_000
	if m.greeted.Add(1) <= carried {
		size = 9 << 18
	}
	return bytes.Repeat(word, size/len(word))
}

// greet sends this process's number and a tensor, and reads the peer's, who is a new
// one.
func (m *meeter) greet(ctx context.Context, p *pipe.Pipe) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.limit, crowdLimit))
	defer cancel()
	if got := p.Plan().Transport; got != shm.Name {
		return fmt.Errorf("the transport is %s", got)
	}
	word := fmt.Appendf(nil, "%4d", m.number)
	tensor := m.tensorFor(word)
	op := p.WriteAsync(ctx, &pipe.Message{Metadata: word, Tensors: []pipe.Tensor{{Buffer: device.Bytes(tensor)}}})
	in, err := p.Next(ctx)
	if err != nil {
		return err
	}
	a := pipe.NewAllocation(in.Descriptor())
	if err := in.Read(ctx, a); err != nil {
		return err
	}
	got, _ := a.Tensors[0].Contiguous()
	theirs := in.Descriptor().Metadata
	if !bytes.Equal(got, bytes.Repeat(theirs, len(got)/len(theirs))) {
		return fmt.Errorf("the tensor of member %s is not what it sent", theirs)
	}
	if _, before := m.met.LoadOrStore(string(theirs), true); before {
		return fmt.Errorf("member %s is there twice", theirs)
	}
	return op.Wait(ctx)
}
