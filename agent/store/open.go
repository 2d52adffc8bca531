package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// Options say who opens a store. A zero field stands for its default.
type Options struct {
	// Rank is the number of this worker, from 0 on. For env:// it is read from
	// the environment.
	Rank int

	// WorldSize is how many workers there are; 0 where that is open. A rank that
	// is not below it is an error. For env:// it is read from the environment.
	WorldSize int

	// Join says that somebody else serves the store of a tcp:// URL, so that
	// rank 0 does not.
	Join bool

	// Listen is where rank 0 listens, host:port, if not at the address of the
	// URL: ":29500" is that port at all addresses.
	Listen string

	// Spaces holds the stores of mem:// URLs.
	Spaces *Spaces

	// Limits bound the store, and Server what its clients may take. The Limits
	// of Server do not count.
	Limits Limits
	Server ServerOptions
}

// Open opens the store that a URL names. The caller closes it.
//
//	tcp://host:port  rank 0 serves it there, until it closes; the others join
//	env://           the same, by what torchrun says in the environment; see
//	                 [FromEnviron]
//	file://path      a file; the rest of the URL is its path, as it is
//	mem://name       a store of Options.Spaces, which goes with its last handle
//
// With tcp:// and env:// it tries until ctx ends, if rank 0 does not serve yet:
// give it a deadline. Anyone who reaches the address of rank 0 may change the
// store.
func Open(ctx context.Context, url string, o Options) (Store, error) {
	s, err := open(ctx, url, o)
	if err != nil {
		return nil, fail("open", url, err)
	}
	return s, nil
}

func open(ctx context.Context, url string, o Options) (Store, error) {
	if err := checkRank(o.Rank, o.WorldSize); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	scheme, rest, found := strings.Cut(url, "://")
	if !found {
		return nil, fmt.Errorf("%w: not of the form scheme://", ErrURL)
	}
	switch scheme {
	case "tcp":
		return openTCP(ctx, strings.TrimSuffix(rest, "/"), o)
	case "env":
		return openEnv(ctx, rest, o)
	case "file":
		if rest == "" {
			return nil, fmt.Errorf("%w: file:// without a path", ErrURL)
		}
		return OpenFile(ctx, rest, o.Limits)
	case "mem":
		return openMem(ctx, rest, o)
	}
	return nil, fmt.Errorf("%w: %s:// is none of tcp, env, file and mem", ErrURL, scheme)
}

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
	if err != nil {
		return nil, err
	}
	if _, err := s.table.add(initKey, 1); err != nil { // as every worker does
		s.Close()
		return nil, err
	}
	return newView(s.local, userPrefix, s.Close), nil
}

func openEnv(ctx context.Context, rest string, o Options) (Store, error) {
	if rest != "" {
		return nil, fmt.Errorf("%w: env:// takes nothing but the environment", ErrURL)
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
}

func openMem(ctx context.Context, name string, o Options) (Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if name == "" || o.Spaces == nil {
		return nil, fmt.Errorf("%w: mem:// needs a name, and Options.Spaces", ErrURL)
	}
	return o.Spaces.open(name, o.Limits), nil
}

// Spaces is the name space of mem:// URLs: those who share one find each other.
// The zero value is ready to use.
type Spaces struct {
	mu     sync.Mutex
	stores map[string]*space
}

// space is a store with the number of its handles.
type space struct {
	*Memory
	handles int
}

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
	return newView(m, "", func() error { return s.release(name, m) })
}

// release forgets a store that nobody has open.
func (s *Spaces) release(name string, m *space) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.handles--
	if m.handles > 0 {
		return nil
	}
	delete(s.stores, name)
	return m.Close()
}
