package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/filetransfer"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

const (
	defaultMemory = 64 << 20 // of send -memory and recv -memory
	leastMemory   = 4 << 20  // one chunk
)

// recv is the command recv, which receives the files of tpipe send. The fields are its flags.
type recv struct {
	path      pathFlags
	tls       tlsFlags
	listen    string
	out       string
	once      bool
	overwrite bool
	maxBytes  byteSize
	memory    byteSize
	senders   int
	stall     time.Duration
	show      showFlags
}

var recvEntry = entry{
	name:    "recv",
	usage:   "-out DIR [-listen HOST:PORT] [flags]",
	summary: "receive the files of a send into a directory",
	help: `Receives what tpipe send sends, from several senders at once, until a signal ends
it; with -once from the first sender only.

A file gets its final name only when it is complete, its CRC32C is right and it is on
disk. Until then it is a part file, .NAME.tpipe-part. If the sender, the network or this
receiver is interrupted, the part file stays, and send -resume continues it; another
transfer of that name replaces it. After other failures it is removed. No sender can write
outside of DIR. An existing file is not replaced without -overwrite: the offer is rejected
before anything is sent, with -resume before anything of that file is sent.

Each transfer takes up to -memory for chunks that are not written yet, and up to 16 MiB
for the header of a file, whatever the size of the files.

At most -max-senders transfers run at a time; a further sender fails, and may try
again. A transfer in which nothing arrives from the sender for -stall-timeout
fails at both ends: the sender was stopped, or its network is down. Its slot and
its file names are then free for others. Time in which the receiver writes
to disk does not count; time in which the sender reads or compresses a chunk
does, so raise -stall-timeout for slow senders. A sender takes
no slot before it has offered its files, for which it has 10s, or -stall-timeout
if that is less.

The first line printed is "listening on" and the URL to dial, with -json on stderr; a
port of 0 in -listen is replaced by the real one. With shm in -transport senders of this
machine use shared memory. Without -tls-cert every process that reaches the address can
fill the disk, up to -max-bytes for each transfer, and with -resume learn the CRC32C of
files in DIR whose names and sizes it knows; and the network can be read. Peers
without an accepted offer hold at most 64 MiB together; those that hold most are
disconnected.

Exit codes: 0 after a signal that cut no transfer short, or with -once when all files
have their final names; 1 if they do not; 130 after a signal that cut a transfer short,
or that came before the one sender of -once.`,
	make: func() command { return &recv{maxBytes: min(1<<40, math.MaxInt), memory: defaultMemory} },
}

func (c *recv) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.listen, "listen", "127.0.0.1:0", "`address` to listen on, HOST:PORT or a URL")
	fs.StringVar(&c.out, "out", "", "`directory` to receive into; it must exist")
	fs.BoolVar(&c.once, "once", false, "exit after the first sender has finished or failed; others are rejected")
	fs.BoolVar(&c.overwrite, "overwrite", false, "replace existing files")
	fs.Var(&c.maxBytes, "max-bytes", "most bytes of one transfer, a `size`")
	fs.Var(&c.memory, "memory", "most bytes of one transfer that are received and not written yet, a `size`, 4MiB or more")
	fs.IntVar(&c.senders, "max-senders", 16, "most `transfers` at a time, 1 or more; further senders are rejected")
	fs.DurationVar(&c.stall, "stall-timeout", 30*time.Second, "longest `time` to wait for a sender from which nothing arrives, 1s or more")
	c.show.flags(fs)
	c.tls.listenFlags(fs)
	c.path.flags(fs)
}

func (c *recv) run(ctx context.Context, s streams) error {
	opts, err := c.options()
	if err != nil {
		return err
	}
	opts.Logger = slog.New(slog.NewTextHandler(s.err, nil))
	store, err := filetransfer.OpenStore(c.out, filetransfer.StoreOptions{
		Overwrite: c.overwrite, MaxBytes: int(c.maxBytes), Memory: int(c.memory), MaxSenders: c.senders, StallTimeout: c.stall,
	})
	if err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	defer store.Close()
	pipes, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer pipes.Close()
	l, urls, err := listen(ctx, pipes, opts, []string{withScheme(uvName, c.listen)})
	if err != nil {
		return flagError("listen", err)
	}
	where := s.out
	if c.show.json {
		where = s.err
	}
	if _, err := fmt.Fprintln(where, "listening on", strings.Join(urls, " ")); err != nil {
		return err // without the URL no peer could dial it
	}
	r := &receiveServer{recv: c, store: store, out: s.out, screen: newScreen(s, c.show.quiet, c.show.json)}
	return errors.Join(r.serve(ctx, l), pipes.Close())
}

// options checks the flags and returns the options for the pipe.Context of the receiver, without a
// Logger. The error is a *usageError, that of a file that a flag names, or that of a transport or
// channel that does not work on this machine.
func (c *recv) options() (pipe.Options, error) {
	tls, err := c.tls.listen()
	if err != nil {
		return pipe.Options{}, err
	}
	opts, err := c.path.options(tls...)
	if err != nil {
		return opts, err
	}
	switch {
	case c.out == "":
		return opts, usageErrorf("-out is missing: name the directory to receive into")
	case c.maxBytes < 1:
		return opts, usageErrorf("-max-bytes %s: want more than 0", c.maxBytes)
	case c.memory < leastMemory:
		return opts, usageErrorf("-memory %s: want 4MiB or more", c.memory)
	case c.senders < 1:
		return opts, usageErrorf("-max-senders %d: want 1 or more", c.senders)
	case c.stall < time.Second: // TCP may take a second to retransmit a lost packet
		return opts, usageErrorf("-stall-timeout %s: want 1s or more", c.stall)
	}
	opts.Name = "tpipe recv"
	opts.Limits = filetransfer.Limits()
	return opts, nil
}

// receiveServer accepts the pipes of senders, receives their files and prints the results.
type receiveServer struct {
	*recv
	store  *filetransfer.Store
	out    io.Writer
	screen *screen

	serving sync.WaitGroup
	mu      sync.Mutex
	cut     bool // a transfer was cut short by a signal
}

// errBusy rejects further senders of a recv -once.
var errBusy = errors.New("it was started with -once and serves another sender")

// serve accepts pipes from l and receives the files of all senders at once, until ctx ends. With
// -once it receives from the first sender only and rejects others until that one has ended. It
// returns when all transfers have ended. The error is errInterrupted if a signal cut a transfer
// short, or came before the one sender of -once. Otherwise it joins the error of the transfer of
// -once and that of accepting. Other failed transfers are printed and not returned.
func (r *receiveServer) serve(ctx context.Context, l *pipe.Listener) error {
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	var result error // of -once
	for senders := 0; ; senders++ {
		p, err := l.Accept(accepting)
		if err != nil {
			r.serving.Wait()
			if ctx.Err() != nil && (r.cut || r.once && senders == 0) {
				return errInterrupted
			}
			return errors.Join(result, acceptError(accepting, err))
		}
		r.serving.Go(func() {
			switch {
			case !r.once:
				if err := r.receive(ctx, p); err != nil {
					r.screen.warn("tpipe recv: " + oneLine(err))
				}
			case senders == 0:
				result = r.receive(ctx, p)
				stop()
			default:
				filetransfer.Reject(p, errBusy)
			}
		})
	}
}

// receive receives all files of one sender and closes p. It prints the result if the transfer
// succeeds or with -json. The error of a transfer names the sender, and matches errInterrupted if a
// signal cut the transfer short. It is joined with the error of printing JSON.
func (r *receiveServer) receive(ctx context.Context, p *pipe.Pipe) error {
	t := newTransfer(p, "from", r.screen, r.show.verbose)
	err := r.store.Receive(ctx, p, t)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) { // not a failure before the signal
		r.mu.Lock()
		r.cut = true
		r.mu.Unlock()
		err = errInterrupted
	}
	t.finish(err)
	if err != nil {
		err = fmt.Errorf("from %s: %w", t.peerName(), err)
		if !r.show.json {
			return err
		}
	}
	r.mu.Lock() // JSON objects must not interleave
	defer r.mu.Unlock()
	return errors.Join(err, t.print(r.out, r.show.json))
}
