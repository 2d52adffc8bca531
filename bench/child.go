package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// job is the first line that a child reads.
type job struct {
	Role string `json:"role"`
	Spec Spec   `json:"spec"`
	URL  string `json:"url"` // to dial, for roleTrips

	For time.Duration `json:"for"` // how long to make round trips

	Connections int `json:"connections"` // to accept, for roleTCP

	catalog Catalog
}

const (
	// roleServer listens, prints its greeting, answers on every pipe that
	// comes, and prints its usage for each further line it reads.
	roleServer = "server"

	// roleTrips opens a pipe, makes round trips that do not count, prints an
	// empty line, waits for a further line, makes round trips for a time, and
	// prints its samples.
	roleTrips = "trips"

	// roleTCP listens on TCP, prints its greeting, takes connections and reads
	// what goes one way.
	roleTCP = "tcp"
)

// greeting is what a server prints first.
type greeting struct {
	URLs []string `json:"urls"`
}

// RunChild is the whole life of a second process: it reads what to do from in,
// answers on out and returns when in ends, or ctx.
func RunChild(ctx context.Context, in io.Reader, out io.Writer, catalog Catalog) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := bufio.NewScanner(in)
	if !lines.Scan() {
		return lines.Err() // the parent went before it said anything
	}
	j := job{catalog: catalog}
	if err := json.Unmarshal(lines.Bytes(), &j); err != nil {
		return fmt.Errorf("%w: job %.80q: %w", ErrProtocol, lines.Text(), err)
	}
	requests := make(chan struct{})
	go func() {
		defer cancel()
		for lines.Scan() {
			select {
			case requests <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	err := j.run(ctx, requests, json.NewEncoder(out))
	if ctx.Err() != nil {
		return nil // nobody is left to be told
	}
	return err
}

func (j job) run(ctx context.Context, requests <-chan struct{}, out *json.Encoder) error {
	switch j.Role {
	case roleServer:
		return j.serve(ctx, requests, out)
	case roleTrips:
		return j.trips(ctx, requests, out)
	case roleTCP:
		return j.receive(ctx, out)
	default:
		return fmt.Errorf("%w: role %q", ErrProtocol, j.Role)
	}
}

func (j job) serve(ctx context.Context, requests <-chan struct{}, out *json.Encoder) error {
	l, err := listen(ctx, j.Spec, j.catalog)
	if err != nil {
		return err
	}
	defer l.close()
	if err := out.Encode(greeting{l.urls()}); err != nil {
		return err
	}
	for {
		select {
		case <-requests:
			if err := out.Encode(ownUsage()); err != nil {
				return err
			}
		case err := <-l.failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func (j job) trips(ctx context.Context, requests <-chan struct{}, out *json.Encoder) error {
	opts, err := j.Spec.options("bench client", j.catalog)
	if err != nil {
		return err
	}
	return withClient(ctx, j.Spec, opts, j.URL, func(c *client, _ *pipe.Plan) error {
		if _, _, err := c.roundTrips(warmUps(1000), 0); err != nil {
			return err
		}
		if err := out.Encode(struct{}{}); err != nil {
			return err
		}
		select {
		case <-requests:
		case <-ctx.Done():
			return ctx.Err()
		}
		samples, err := c.tripsFor(j.For)
		if err != nil {
			return err
		}
		return out.Encode(Samples{RoundTrips: samples})
	})
}

// listening is the server's end: a context, its listener and the pipes that
// came.
type listening struct {
	context  *pipe.Context
	listener *pipe.Listener
	failed   chan error // the first error of a pipe
	serving  sync.WaitGroup
	memory   arenas
}

func listen(ctx context.Context, s Spec, from Catalog) (*listening, error) {
	opts, err := s.options("bench server", from)
	if err != nil {
		return nil, err
	}
	l := &listening{failed: make(chan error, 1), memory: arenas{buffers: s.Buffers, contents: s.contents()}}
	if l.context, err = pipe.New(opts); err != nil {
		return nil, err
	}
	var urls []string
	for _, e := range opts.Transports {
		urls = append(urls, anyAddress(e.Name))
	}
	if l.listener, err = l.context.Listen(ctx, urls...); err != nil {
		return nil, errors.Join(err, l.context.Close())
	}
	l.serving.Go(func() { l.accept(ctx) })
	return l, nil
}

// anyAddress is where to listen so that no other program is in the way.
func anyAddress(transport string) string {
	if transport == tcpTransport {
		return "uv://127.0.0.1:0"
	}
	return transport + "://"
}

func (l *listening) urls() []string { return l.listener.URLs() }

// accept answers on every pipe, until the listener is closed.
func (l *listening) accept(ctx context.Context) {
	for {
		p, err := l.listener.Accept(ctx)
		if err != nil {
			return
		}
		l.serving.Go(func() {
			if err := serve(p, &l.memory); err != nil {
				p.Abort(err)
				select {
				case l.failed <- err:
				default:
				}
			}
		})
	}
}

func (l *listening) close() error {
	err := l.context.Close()
	l.serving.Wait()
	return err
}
