package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/ferry"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// recv is the command that receives files from sends.
type recv struct {
	path      pathFlags
	tls       tlsFlags
	listen    string
	out       string
	once      bool
	overwrite bool
	maxBytes  byteSize
	limit     byteSize
	senders   int
	stall     time.Duration
	show      showFlags
}

func recvEntry() entry {
	return entry{
		name:    "recv",
		usage:   "-out DIR [-listen HOST:PORT] [flags]",
		summary: "receive the files of a send into a directory",
		help: `Receives what tpipe send sends, from several senders at once, until a signal ends
it; with -once from the first sender only.

A file stands under its name only when it is complete, its CRC32C is right and
it is on disk; until then it is called .NAME.tpipe-part, and is removed when the
transfer fails. A receiver that was killed may leave such a file; the next
transfer of that name replaces it. Nothing can be written outside of DIR,
whatever a sender says. A file that exists is not replaced without -overwrite;
the sender hears so before it sends anything.

At most -max-senders transfers run at a time; a further sender fails, and may try
again. A transfer in which nothing arrives from the sender for -stall-timeout
fails at both ends: the sender was stopped, or its network is down. Its slot and
its file names are then free for others. Time in which the receiver writes
to disk does not count; time in which the sender reads or compresses a tensor
does, so raise -stall-timeout for slow senders of large tensors. A sender takes
no slot before it has offered its files, for which it has 10s, or -stall-timeout
if that is less.

The first line printed is "listening on" and the URL to dial, with -json on
stderr; a port of 0 in -listen has become a real one there. With shm in
-transport senders of this machine are moved to shared memory. Without -tls-cert
anybody who reaches that address can fill the disk, up to -max-bytes for each
transfer, and others can read along. Peers whose offer was
not accepted take at most 64 MiB together; those that hold most are disconnected.

Exit codes: 0 after a signal that cut no transfer short, or with -once when all
files are in place; 1 if they are not; 130 after a signal that cut a transfer
short, or that came before the one sender of -once.`,
		make: func() command { return &recv{maxBytes: min(1<<40, math.MaxInt), limit: min(8<<30, math.MaxInt)} },
	}
}

func (c *recv) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.listen, "listen", "127.0.0.1:0", "`address` to listen on, HOST:PORT or uv://HOST:PORT")
	fs.StringVar(&c.out, "out", "", "`directory` to receive into; it must exist")
	fs.BoolVar(&c.once, "once", false, "end when the first sender has finished, or failed; others are refused")
	fs.BoolVar(&c.overwrite, "overwrite", false, "replace files that exist")
	fs.Var(&c.maxBytes, "max-bytes", "most bytes of one transfer, a `size`")
	fs.Var(&c.limit, "limit", "largest tensor to take, a `size`; each sender may make the receiver use that much memory, or 128 MiB if that is more")
	fs.IntVar(&c.senders, "max-senders", 16, "most `transfers` at a time, 1 or more; further senders are refused")
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
	store, err := ferry.OpenStore(c.out, ferry.StoreOptions{
		Overwrite: c.overwrite, MaxBytes: int(c.maxBytes), MaxTensor: int(c.limit), Senders: c.senders, StallTimeout: c.stall,
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
	l, urls, err := listen(ctx, pipes, opts, []string{withScheme(c.listen)})
	if err != nil {
		return blame("listen", err)
	}
	where := s.out
	if c.show.json {
		where = s.err
	}
	if _, err := fmt.Fprintln(where, "listening on", strings.Join(urls, " ")); err != nil {
		return err // nobody would find it
	}
	h := &harbour{recv: c, store: store, out: s.out, screen: newScreen(s, c.show.quiet, c.show.json)}
	return errors.Join(h.serve(ctx, l), pipes.Close())
}

// options checks the flags.
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
	case c.maxBytes < 1 || c.limit < 1:
		return opts, usageErrorf("-max-bytes and -limit: want more than 0")
	case c.senders < 1:
		return opts, usageErrorf("-max-senders %d: want 1 or more", c.senders)
	case c.stall < time.Second: // a packet that was lost is sent again after up to a second
		return opts, usageErrorf("-stall-timeout %s: want 1s or more", c.stall)
	}
	opts.Name = "tpipe recv"
	opts.Limits = ferry.Limits(int(c.limit))
	return opts, nil
}
