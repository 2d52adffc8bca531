package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Options configures [Open]. A zero field stands for its default.
type Options struct {
	// Rank is the number of this worker, counted from 0. For env:// it is read from
	// the environment.
	Rank int

	// WorldSize is the number of workers, or 0 if that is open. A Rank that is not
	// below it is an error. For env:// it is read from the environment.
	WorldSize int

	// Join makes rank 0 join the store of a tcp:// URL, which another process serves,
	// instead of serving it.
	Join bool

	// Listen is the address (host:port) at which rank 0 listens, if it differs from
	// that of the URL; ":29500" is port 29500 of all addresses.
	Listen string

	// Spaces holds the stores of mem:// URLs.
	Spaces *Spaces

	// Limits bounds the store, and Server the resources of its clients. The Limits
	// of Server are ignored.
	Limits Limits
	Server ServerOptions
}

// Open opens the store that url refers to, and returns a handle on it. The caller must close the
// handle.
//
//	tcp://host:port  rank 0 serves the store at this address until it closes the
//	                 store; the other ranks connect to it
//	env://           as tcp://, with the address and rank that torchrun sets in the
//	                 environment; see [FromEnviron]
//	file://path      a file; path is used as it is, without unescaping
//	mem://name       a store of Options.Spaces; closing its last handle deletes it
//
// With tcp:// and env:// Open retries until ctx ends while rank 0 does not serve yet, so ctx should
// have a deadline. Every process that can connect to rank 0 can change the store. The error, an
// [*Error], matches [ErrURL] if the URL, the rank or the environment is invalid.
func Open(ctx context.Context, url string, o Options) (Store, error) {
	s, err := open(ctx, url, o)
	if err != nil {
		return nil, fail("open", url, err)
	}
	return s, nil
}

// open opens the store that url refers to, as Open does, but returns errors that need not be an
// [*Error].
func open(ctx context.Context, url string, o Options) (Store, error) {
	if err := checkRank(o.Rank, o.WorldSize); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	scheme, location, found := strings.Cut(url, "://")
	if !found {
		return nil, fmt.Errorf("%w: not of the form scheme://", ErrURL)
	}
	switch scheme {
	case "tcp":
		return openTCP(ctx, strings.TrimSuffix(location, "/"), o)
	case "env":
		if location != "" {
			return nil, fmt.Errorf("%w: env:// must not be followed by anything", ErrURL)
		}
		e, err := FromEnviron()
		if err != nil {
			return nil, err
		}
		o.Rank, o.WorldSize, o.Join = e.Rank, e.WorldSize, o.Join || e.Served
		s, err := openTCP(ctx, e.Addr, o)
		if err != nil || e.Prefix == "" {
			return s, err
		}
		return newView(s, e.Prefix+"/", s.Close), nil
	case "file":
		if location == "" {
			return nil, fmt.Errorf("%w: file:// without a path", ErrURL)
		}
		return OpenFile(ctx, location, o.Limits)
	case "mem":
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if location == "" || o.Spaces == nil {
			return nil, fmt.Errorf("%w: mem:// needs a name, and Options.Spaces", ErrURL)
		}
		return o.Spaces.open(location, o.Limits), nil
	}
	return nil, fmt.Errorf("%w: %s:// is none of tcp, env, file and mem", ErrURL, scheme)
}

// openTCP serves a store if o.Rank is 0 and o.Join is false: at the address o.Listen, or at addr if
// o.Listen is empty. Closing the result then stops the server. Otherwise openTCP connects to the
// store at addr. The error matches ErrURL if addr is invalid, or is that of serving or connecting.
func openTCP(ctx context.Context, addr string, o Options) (Store, error) {
	if err := checkAddr(addr); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	if o.Rank > 0 || o.Join {
		return Dial(ctx, addr, ClientOptions{Limits: o.Limits})
	}
	if o.Listen != "" {
		addr = o.Listen
	}
	o.Server.Limits = o.Limits
	s, err := Serve(ctx, addr, o.Server)
	if err != nil && o.Listen != "" {
		return nil, fmt.Errorf("at %s: %w", addr, errors.Unwrap(err))
	} else if err != nil {
		return nil, err
	}
	if _, err := s.table.add(initKey, 1); err != nil { // as every worker does
		s.Close()
		return nil, err
	}
	return newView(s.local, userPrefix, s.Close), nil
}

// Spaces is a name space of mem:// URLs: workers with the same Spaces share the
// stores in it. The zero value is ready to use.
type Spaces struct {
	mu     sync.Mutex
	stores map[string]*space
}

// space is a store with the number of its open handles.
type space struct {
	*Memory
	handles int
}

// open returns a handle on the store with that name. If there is none it creates one with the
// limits l. Closing a handle ends the calls through it; closing the last one also closes and
// removes the store.
func (s *Spaces) open(name string, l Limits) Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores == nil {
		s.stores = make(map[string]*space)
	}
	m := s.stores[name]
	if m == nil {
		m = &space{Memory: NewMemory(l)}
		s.stores[name] = m
	}
	m.handles++
	return newView(m, "", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m.handles--
		if m.handles > 0 {
			return nil
		}
		delete(s.stores, name)
		return m.Close()
	})
}

// Environ holds the settings that torchrun and other launchers put into the environment.
type Environ struct {
	Addr      string // host:port of the store: MASTER_ADDR and MASTER_PORT
	Rank      int    // RANK
	WorldSize int    // WORLD_SIZE

	// Served reports that the launcher serves the store instead of rank 0:
	// TORCHELASTIC_USE_AGENT_STORE is True. Prefix is then the key prefix of this
	// attempt to run the group, made of TORCHELASTIC_RESTART_COUNT.
	Served bool
	Prefix string
}

// FromEnviron returns the settings in the environment variables of this process. The error, an
// [*Error], matches [ErrURL] if a variable is missing or invalid.
func FromEnviron() (Environ, error) {
	r := environReader{}
	e := Environ{
		Rank:      r.number("RANK"),
		WorldSize: r.number("WORLD_SIZE"),
		Addr:      net.JoinHostPort(r.text("MASTER_ADDR"), r.text("MASTER_PORT")),
		Served:    os.Getenv("TORCHELASTIC_USE_AGENT_STORE") == "True",
	}
	if e.Served {
		e.Prefix = "/worker/attempt_" + r.text("TORCHELASTIC_RESTART_COUNT")
	}
	if r.err == nil {
		r.err = checkAddr(e.Addr)
	}
	if r.err == nil {
		r.err = checkRank(e.Rank, e.WorldSize)
	}
	if r.err != nil {
		return Environ{}, fail("open", "env://", fmt.Errorf("%w: %w", ErrURL, r.err))
	}
	return e, nil
}

// environReader reads environment variables and keeps the first error.
type environReader struct{ err error }

// text returns the value of the environment variable name. If the variable is not set or empty,
// text returns "" and sets r.err, unless r.err is set already.
func (r *environReader) text(name string) string {
	s := os.Getenv(name)
	if s == "" && r.err == nil {
		r.err = fmt.Errorf("environment variable %s expected, but not set", name)
	}
	return s
}

// number returns the value of the environment variable name as a number. If it is not a decimal
// number, number returns a value without meaning and sets r.err, unless r.err is set already.
func (r *environReader) number(name string) int {
	s := r.text(name)
	n, err := strconv.Atoi(s)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("environment variable %s is %q, and not a number", name, s)
	}
	return n
}

// checkRank returns an error unless rank is a rank of a group of size workers, that is 0 or more
// and less than size. A size of 0 stands for any size.
func checkRank(rank, size int) error {
	if rank < 0 || size < 0 || size > 0 && rank >= size {
		return fmt.Errorf("rank %d in a world of %d", rank, size)
	}
	return nil
}
