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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// descriptorsChild is the first argument of a child that runs out of file descriptors.
const descriptorsChild = "descriptors"

// When the limit on a child's descriptors takes effect.
const (
	beforeOpening = "before"  // before a pipe is opened: n are left
	forSession    = "session" // on its first connection over shared memory: none are left
	inTotal       = "total"   // from the beginning: n in all
)

// shortage describes how a child runs out of descriptors while pipes are opened.
type shortage struct {
	variant
	direct bool // pipes are dialled over shm, else they change to it
	when   string
	n      int
	dials  int
}

func (s shortage) String() string {
	return fmt.Sprintf("%s %d/%s/%s/direct=%t", s.when, s.n, s.dialect, s.child(), s.direct)
}

// outcomes opens s.dials pipes between this process and a child that lacks file descriptors, and
// returns the outcome of each as text, as dialOnce does.
func (s shortage) outcomes(t *testing.T) (all []string) {
	t.Helper()
	c, err := allOptionsContext("parent", s.dialect, "", cma.New(cma.Options{}))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	childArgs := func(url string) string {
		return fmt.Sprint(descriptorsChild, " ", s.dialect, " ", url, " ", s.when, " ", s.n, " ", s.dials)
	}
	if s.listens {
		kid := startChild(t, childArgs("listen"), nil)
		return dialMany(t.Context(), c, s.url(strings.Fields(kid.line())), s.dials)
	}
	l, err := c.Listen(t.Context(), "shm://", "uv://127.0.0.1:0")
	require.NoError(t, err)
	go servePlans(t.Context(), l)
	kid := startChild(t, childArgs(s.url(l.URLs())), nil)
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

// runDescriptors is the main function of a child that lacks file descriptors. childArgs are the
// dialect, the address to dial or "listen", the time at which the child limits its descriptors,
// their number, and the number of pipes. It dials the pipes and prints their outcomes, or listens,
// prints its addresses and serves.
func runDescriptors(childArgs string) error {
	args := strings.Split(childArgs, " ")
	dialect, url, when := pipe.Dialect(args[0]), args[1], args[2]
	n, errN := strconv.Atoi(args[3])
	dials, errDials := strconv.Atoi(args[4])
	o := allOptions("child", dialect, "", cma.New(cma.Options{}))
	if err := errors.Join(errN, errDials, shm.New().Viable()); err != nil {
		return err
	}
	if when == forSession {
		o.Transports[1].Transport = exhaustingSHM{shm.New(), new(sync.Once)}
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
	case inTotal:
		err = limit(unix.RLIMIT_NOFILE, uint64(n))
	}
	if err != nil {
		return err
	}
	if l != nil {
		go servePlans(context.Background(), l)
		fmt.Println(strings.Join(l.URLs(), " "))
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
		return nil
	}
	for _, outcome := range dialMany(context.Background(), c, url, dials) {
		fmt.Printf("%q\n", outcome)
	}
	return nil
}

// exhaustingSHM is a transport over shared memory. During its first connection the process has no
// descriptor left for the session: from Dial, or at the listening end from PrepareSession, until
// PrepareSession returns.
type exhaustingSHM struct {
	*shm.Transport
	once *sync.Once
}

func (e exhaustingSHM) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := e.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	conn := e.conn(c)
	return conn, conn.exhaust()
}

func (e exhaustingSHM) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := e.Transport.Listen(ctx, addr)
	return exhaustingListener{l, e}, err
}

func (e exhaustingSHM) conn(c transport.Conn) *exhaustingConn {
	return &exhaustingConn{c, c.(transport.Multiplexer), e.once, 0}
}

type exhaustingListener struct {
	transport.Listener
	of exhaustingSHM
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
	once *sync.Once
	lift uint64 // the limit to restore, or 0
}

// exhaust lowers this process's limit of file descriptors so far that none can be opened, and
// stores the earlier limit in c.lift. Only the first call for a transport has an effect. The error
// is that of the system.
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
	err := errors.Join(c.exhaust(), c.Multiplexer.PrepareSession(cfg))
	if c.lift != 0 {
		err = errors.Join(err, limit(unix.RLIMIT_NOFILE, c.lift))
	}
	return err
}

// servePlans accepts pipes until ctx ends. On each it reads a message and replies with its plan as
// text, and then waits for the peer to close.
func servePlans(ctx context.Context, l *pipe.Listener) {
	for {
		p, err := l.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			defer p.Abort(nil)
			if _, err := readMessage(ctx, p); err == nil && p.Write(ctx, &pipe.Message{Metadata: []byte(p.Plan().String())}) == nil {
				_, _ = p.Next(ctx) // until the peer closes the pipe
			}
		}()
	}
}

// dialMany calls dialOnce for as many pipes as the argument dials, at most 30 calls at a time, and
// returns the results of the calls.
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

// Outcomes of a dial. Those that begin with bad are failures of the test.
const (
	overMemory = "a pipe over shared memory"
	overTCP    = "a pipe over TCP, with the reason at both ends"
	failed     = "failed: "
	bad        = "bad: "
)

var (
	lack = `too many open files|the (listening end hung up|server closed the connection)`

	plansSay   = regexp.MustCompile(`transport +uv\n(.*\n)*not transport shm .*(` + lack + `)`)
	clearError = regexp.MustCompile(lack)
)

// dialOnce dials a pipe to a server that runs servePlans, exchanges a message, and returns the
// outcome as text. The text begins with bad if an error does not have the reason, if an open pipe
// failed, or if the plans lack a reason. Otherwise it is failed and the error of Dial, overMemory
// or overTCP.
func dialOnce(ctx context.Context, c *pipe.Context, url string) string {
	p, err := c.Dial(ctx, url)
	switch {
	case err != nil && !clearError.MatchString(err.Error()):
		return bad + "an error without the reason: " + err.Error()
	case err != nil:
		return failed + err.Error()
	}
	defer p.Abort(nil)
	if err := p.Write(ctx, testMessages()[0]); err != nil {
		return bad + "an open pipe that failed: " + err.Error()
	}
	m, err := readMessage(ctx, p)
	if err != nil {
		return bad + "an open pipe that failed: " + err.Error()
	}
	own, peers := p.Plan().String(), string(m.Metadata)
	switch {
	case p.Plan().Transport == shm.Name:
		return overMemory
	case plansSay.MatchString(own) && plansSay.MatchString(peers):
		return overTCP
	}
	return bad + "a pipe without a reason in the plans: " + own + peers
}

// TestNoDescriptorForSession checks that if an end has a connection over shared memory, but no file
// descriptor for the session on it, the pipe uses TCP, or, if shared memory was dialled, Dial fails
// with that reason.
func TestNoDescriptorForSession(t *testing.T) {
	for _, listens := range []bool{false, true} {
		s := shortage{variant: variant{pipe.DialectNative, listens}, when: forSession, dials: 1}
		t.Run(s.String(), func(t *testing.T) { require.Equal(t, []string{overTCP}, s.outcomes(t)) })
		s.direct = true
		t.Run(s.String(), func(t *testing.T) {
			require.Regexp(t, failed+".*too many open files", s.outcomes(t)[0])
		})
	}
}

// TestFewDescriptorsLeft checks that for each small number of file descriptors that a process has
// left, and so for a lack of them at each step of the handshake, Dial fails with that reason or
// returns a working pipe. The compatible dialect over TCP with a server that lacks descriptors is
// left out, because its client cannot learn of the lack.
func TestFewDescriptorsLeft(t *testing.T) {
	const enough = 16
	step := 1
	if race.Enabled { // a child takes a second to start
		step = 4
	}
	for n := 0; n <= enough; n += step {
		for _, c := range variants(n / step) {
			for _, direct := range []bool{false, true} {
				if c.listens && !direct && (n == 0 || c.dialect == pipe.DialectCompatible) {
					continue
				}
				s := shortage{variant: c, direct: direct, when: beforeOpening, n: n, dials: 1}
				t.Run(s.String(), func(t *testing.T) {
					outcome := s.outcomes(t)[0]
					require.False(t, strings.HasPrefix(outcome, bad), outcome)
					if n == enough {
						require.Equal(t, overMemory, outcome)
					}
				})
			}
		}
	}
}

// TestManyDialsWithFewDescriptors checks that if many pipes are opened concurrently between two
// processes, of which one has few file descriptors, each dial fails with that reason or returns a
// working pipe, and at least one pipe opens.
func TestManyDialsWithFewDescriptors(t *testing.T) {
	for _, listens := range []bool{false, true} {
		for _, direct := range []bool{false, true} {
			s := shortage{variant: variant{pipe.DialectNative, listens}, direct: direct, when: inTotal, n: 40, dials: 120}
			t.Run(s.String(), func(t *testing.T) {
				count := map[string]int{}
				for _, outcome := range s.outcomes(t) {
					require.False(t, strings.HasPrefix(outcome, bad), outcome)
					kind, _, _ := strings.Cut(outcome, ":")
					count[kind]++
				}
				t.Log(count)
				require.Positive(t, count[overMemory]+count[overTCP])
			})
		}
	}
}
