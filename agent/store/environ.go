package store

import (
	"fmt"
	"net"
	"os"
	"strconv"
)

// Environ is what torchrun, and others who start workers, say in the environment.
type Environ struct {
	Addr      string // host:port of the store: MASTER_ADDR and MASTER_PORT
	Rank      int    // RANK
	WorldSize int    // WORLD_SIZE

	// Served says that whoever started the workers serves the store, and not
	// rank 0: TORCHELASTIC_USE_AGENT_STORE is True. Prefix is then the part of
	// it that this attempt has for itself, by TORCHELASTIC_RESTART_COUNT.
	Served bool
	Prefix string
}

// FromEnviron reads the environment. The error matches [ErrURL] and names the
// variable that is missing, or makes no sense.
func FromEnviron() (Environ, error) {
	r := variables{}
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

// variables reads from the environment and keeps the first error.
type variables struct{ err error }

func (r *variables) text(name string) string {
	s := os.Getenv(name)
	if s == "" && r.err == nil {
		r.err = fmt.Errorf("environment variable %s expected, but not set", name)
	}
	return s
}

func (r *variables) number(name string) int {
	s := r.text(name)
	n, err := strconv.Atoi(s)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("environment variable %s is %q, and not a number", name, s)
	}
	return n
}

// checkRank leaves open how many workers there are where size is 0.
func checkRank(rank, size int) error {
	if rank < 0 || size < 0 || size > 0 && rank >= size {
		return fmt.Errorf("rank %d in a world of %d", rank, size)
	}
	return nil
}
