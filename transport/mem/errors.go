package mem

// Error says what failed on which address. Err is the cause: ctx's error, or
// the syscall.Errno that TCP would give in the same place, so that callers
// treat both transports alike: ECONNREFUSED where nobody listens, EADDRINUSE
// where somebody does already, EPIPE where the peer closed.
type Error struct {
	Op   string // "listen", "dial" or "write"
	Addr string // the address asked for, or the peer's
	Err  error
}

func (e *Error) Error() string { return "mem: " + e.Op + " " + e.Addr + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
