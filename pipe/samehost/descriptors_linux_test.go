package samehost_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// descriptorsPart begins the part of a child that runs out of descriptors.
const descriptorsPart = "descriptors"

// When a child runs out of descriptors.
const (
	beforeOpening = "before"  // a pipe: n are left
	forSession    = "session" // on its first connection over shared memory: none is left
	altogether    = "total"   // it may have n at a time
)

// shortage is how a child runs out of descriptors, while pipes are opened.
type shortage struct {
	constellation
	direct bool // they are dialled over shm, and else move to it
	when   string
	n      int
	dials  int
}

func (s shortage) String() string {
	return fmt.Sprintf("%s %d/%s/%s/direct=%t", s.when, s.n, s.dialect, s.child(), s.direct)
}

// outcomes opens the pipes and returns an outcome for each.
func (s shortage) outcomes(t *testing.T) (all []string) {
	t.Helper()
	c, err := everything("parent", s.dialect, "", cma.New(cma.Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	part := func(url string) string {
		return fmt.Sprint(descriptorsPart, " ", s.dialect, " ", url, " ", s.when, " ", s.n, " ", s.dials)
	}
	if s.listens {
		kid := spawn(t, part("listen"), nil)
		return dialMany(t.Context(), c, s.url(strings.Fields(kid.line())), s.dials)
	}
	l, err := c.Listen(t.Context(), "shm://", "uv://127.0.0.1:0")
	require.NoError(t, err)
	go describeAll(t.Context(), l)
	kid := spawn(t, part(s.url(l.URLs())), nil)
	for range s.dials {
		outcome, err := strconv.Unquote(kid.line())
		require.NoError(t, err)
		all = append(all, outcome)
	}
	return all
}

func (s shortage) url(all []string) string {
	if strings.HasPrefix(all[0], shm.Name) == s.direct {
		return all[0]
	}
	return all[1]
}

// playDescriptors is the life of the child.
func playDescriptors(part string) error {
	words := strings.Split(part, " ")
	dialect, url, when := words[0], words[1], words[2]
	n, errN := strconv.Atoi(words[3])
	dials, errDials := strconv.Atoi(words[4])
	o := everythingOptions("child", dialect, "", cma.New(cma.Options{}))
	if err := errors.Join(errN, errDials, shm.New().Viable()); err != nil {
		return err
	}
	if when == forSession {
		o.Transports[1].Transport = exhausting{shm.New(), new(sync.Once)}
	}
	c, err := pipe.New(o)
	if err != nil {
		return err
	}
	defer c.Close()
	var l *pipe.Listener
	if url == "listen" {
		if l, err = c.Listen(context.Background(), "shm://", "uv://127.0.0.1:0"); err != nil {
			return err
		}
	}
	switch when {
	case beforeOpening:
		err = limitDescriptors(n)
	case altogether:
		err = limit(unix.RLIMIT_NOFILE, uint64(n))
	}
	if err != nil {
		return err
	}
	if l != nil {
		go describeAll(context.Background(), l)
		fmt.Println(strings.Join(l.URLs(), " "))
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
		return nil
	}
	for _, outcome := range dialMany(context.Background(), c, url, dials) {
		fmt.Printf("%q\n", outcome)
	}
	return nil
}

// exhausting is shared memory of a process that has no descriptor for the session on its
// first connection: from Dial, or from PrepareSession of the listening end, until that is
// prepared.
type exhausting struct {
	*shm.Transport
	once *sync.Once
}

func (e exhausting) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := e.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	conn := e.conn(c)
	return conn, conn.exhaust()
}

func (e exhausting) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := e.Transport.Listen(ctx, addr)
	return exhaustingListener{l, e}, err
}

func (e exhausting) conn(c transport.Conn) *exhaustingConn {
	return &exhaustingConn{c, c.(transport.Multiplexer), c.(transport.SessionPreparer), e.once, 0}
}

type exhaustingListener struct {
	transport.Listener
	of exhausting
}

func (l exhaustingListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return l.of.conn(c), nil
}

type exhaustingConn struct {
	transport.Conn
	transport.Multiplexer
	transport.SessionPreparer
	once *sync.Once
	lift uint64 // the limit to set again; 0 is none
}

// exhaust forbids all descriptors beyond those of the standard streams.
func (c *exhaustingConn) exhaust() (err error) {
	c.once.Do(func() {
		var before unix.Rlimit
		if err = unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err == nil {
			c.lift = before.Cur
			err = limit(unix.RLIMIT_NOFILE, 3)
		}
	})
	return err
}

func (c *exhaustingConn) PrepareSession(cfg transport.SessionConfig) error {
	err := errors.Join(c.exhaust(), c.SessionPreparer.PrepareSession(cfg))
	if c.lift != 0 {
		err = errors.Join(err, limit(unix.RLIMIT_NOFILE, c.lift))
	}
	return err
}

// describeAll accepts pipes, and answers the first message on each with its plan.
func describeAll(ctx context.Context, l *pipe.Listener) {
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			defer p.Abort(nil)
			if _, err := read(ctx, p); err == nil && p.Write(ctx, &pipe.Message{Metadata: []byte(p.Plan().String())}) == nil {
				_, _ = p.Next(ctx) // until the peer ends the pipe
			}
		}()
	}
}

// dialMany dials that often, 30 at a time, and returns an outcome for each.
func dialMany(ctx context.Context, c *pipe.Context, url string, dials int) []string {
	outcomes := make([]string, dials)
	slots := make(chan struct{}, 30)
	var all sync.WaitGroup
	for i := range outcomes {
		slots <- struct{}{}
		all.Go(func() {
			outcomes[i] = dialOnce(ctx, c, url)
			<-slots
		})
	}
	all.Wait()
	return outcomes
}

// Outcomes of a dial. Those that begin with bad are none that it may have.
const (
	overMemory = "a pipe over shared memory"
	overTCP    = "a pipe without it, and the reason at both ends"
	failed     = "failed: "
	bad        = "bad: "
)

var (
	lack = `too many open files|the listening end hung up`

	plansSay   = regexp.MustCompile(`transport +uv\n(.*\n)*not transport shm .*(` + lack + `)`)
	clearError = regexp.MustCompile(lack)
)

// dialOnce opens a pipe and has a message go both ways.
func dialOnce(ctx context.Context, c *pipe.Context, url string) string {
	p, err := c.Dial(ctx, url)
	switch {
	case err != nil && !clearError.MatchString(err.Error()):
		return bad + "an error that does not say why: " + err.Error()
	case err != nil:
		return failed + err.Error()
	}
	defer p.Abort(nil)
	if err := p.Write(ctx, words()[0]); err != nil {
		return bad + "an open pipe that died: " + err.Error()
	}
	m, err := read(ctx, p)
	if err != nil {
		return bad + "an open pipe that died: " + err.Error()
	}
	here, there := p.Plan().String(), string(m.Metadata)
	switch {
	case p.Plan().Transport == shm.Name:
		return overMemory
	case plansSay.MatchString(here) && plansSay.MatchString(there):
		return overTCP
	}
	return bad + "a pipe without a reason in the plans: " + here + there
}

// Where an end has a connection over shared memory, and no descriptor for the session on
// it, the dialling end knows before it counts the pipe as open. A compatible pipe has no
// session.
func TestNoDescriptorForTheSession(t *testing.T) {
	for _, listens := range []bool{false, true} {
		s := shortage{constellation: constellation{pipe.DialectNative, listens}, when: forSession, dials: 1}
		t.Run(s.String(), func(t *testing.T) { require.Equal(t, []string{overTCP}, s.outcomes(t)) })
		s.direct = true
		t.Run(s.String(), func(t *testing.T) {
			require.Regexp(t, failed+".*too many open files", s.outcomes(t)[0])
		})
	}
}

// Every number of descriptors that an end may have left, and so a lack of them at each
// step of opening a pipe that takes one. What a compatible pipe over TCP comes to is not
// known at its dialling end, which counts connections as open that wait to be accepted.
func TestFewDescriptorsLeft(t *testing.T) {
	const enough = 16
	step := 1
	if race.Enabled { // a child takes a second to start
		step = 4
	}
	for n := 0; n <= enough; n += step {
		for _, c := range constellations(n / step) {
			for _, direct := range []bool{false, true} {
				if c.listens && !direct && (n == 0 || c.dialect == pipe.DialectCompatible) {
					continue
				}
				s := shortage{constellation: c, direct: direct, when: beforeOpening, n: n, dials: 1}
				t.Run(s.String(), func(t *testing.T) {
					outcome := s.outcomes(t)[0]
					require.NotContains(t, outcome, bad)
					if n == enough {
						require.Equal(t, overMemory, outcome)
					}
				})
			}
		}
	}
}

// Many pipes are opened at once by processes of which one may have few descriptors. Each
// dial fails with the reason, or yields a pipe that works.
func TestManyDialsWithFewDescriptors(t *testing.T) {
	for _, listens := range []bool{false, true} {
		for _, direct := range []bool{false, true} {
			s := shortage{constellation: constellation{pipe.DialectNative, listens}, direct: direct, when: altogether, n: 40, dials: 120}
			t.Run(s.String(), func(t *testing.T) {
				count := map[string]int{}
				for _, outcome := range s.outcomes(t) {
					require.NotContains(t, outcome, bad)
					kind, _, _ := strings.Cut(outcome, ":")
					count[kind]++
				}
				t.Log(count)
				require.Positive(t, count[overMemory]+count[overTCP])
			})
		}
	}
}
