package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/filetransfer"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// send is the command send, which sends files to tpipe recv. The fields are its flags and operands.
type send struct {
	path    pathFlags
	tls     tlsFlags
	to      string
	paths   []string
	follow  bool
	codec   pipe.Compression
	timeout time.Duration
	resume  bool
	memory  byteSize
	show    showFlags
}

var sendEntry = entry{
	name:    "send",
	usage:   "-to HOST:PORT [flags] PATH...",
	summary: "send safetensors files to a recv on another machine",
	help: `Sends files and folders of safetensors files to tpipe recv. A file arrives under its own
name, the files of a folder in a folder of the same name; "." and "DIR/." send the files
of a folder without its name. In folders only *.safetensors are sent, at any depth.

The headers of all files are read before anything is sent, and the receiver accepts or
rejects the list of all names and sizes. Files arrive byte for byte, in chunks of 4 MiB,
several at a time. A CRC32C protects the bytes from the file here to the disk there and is
printed for each file.

With -resume the receiver reports the CRC32C of each chunk that it has. Files with the same
size and CRC32C are skipped, and a part file continues after the chunks that are equal to
the file here. Both ends read what was transferred before; neither sends it again.

If no receiver listens yet, send waits for one, up to -timeout.

With -compress the tensors that become smaller are sent compressed, if the receiver can
decompress. This takes CPU time at both ends and is for slow networks: s2 for repetitive
data, zstd also for weights.

A receiver drops a sender from which nothing has arrived for some time, 30s by default:
see -stall-timeout in tpipe help recv.

The exit code is 0 if the receiver has confirmed every file: complete, checked and on
disk. After a failure or SIGINT complete files stay. After SIGINT, and if the connection
or one end was lost, the receiver keeps the part file, and -resume continues it. After
SIGINT send waits up to 10s for the receiver, so that it prints what the receiver has.`,
	make: func() command { return &send{memory: defaultMemory} },
}

func (c *send) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.to, "to", "", "`address` of the receiver, HOST:PORT or a URL")
	fs.BoolVar(&c.follow, "follow", false, "follow symbolic links to files in folders; without it such links are an error")
	fs.TextVar(&c.codec, "compress", pipe.CompressionNone, "`codec` to compress tensors with: s2 or zstd")
	fs.BoolVar(&c.resume, "resume", false, "send only the bytes that the receiver lacks: skip equal files, continue part files")
	fs.Var(&c.memory, "memory", "most bytes that are read and not sent yet, a `size`, 4MiB or more")
	fs.DurationVar(&c.timeout, "timeout", 30*time.Second, "longest `time` to wait for a receiver and the connection to it")
	c.show.flags(fs)
	c.tls.dialFlags(fs)
	c.path.flags(fs)
}

// setOperands stores operands, the files and folders to send, and checks the flags that run needs.
// It keeps the slice. The error is a *usageError, also if operands is empty.
func (c *send) setOperands(operands []string) error {
	c.paths = operands
	switch {
	case c.to == "":
		return usageErrorf("-to is missing: give the address of a tpipe recv such as 127.0.0.1:7000")
	case len(operands) == 0:
		return usageErrorf("nothing to send: name files or folders")
	case c.codec != pipe.CompressionNone && c.path.dialect == pipe.DialectCompatible:
		return usageErrorf("-compress %s: the compatible dialect has no compression", c.codec)
	case c.memory < leastMemory:
		return usageErrorf("-memory %s: want 4MiB or more", c.memory)
	case c.timeout <= 0:
		return usageErrorf("-timeout %s: want more than 0", c.timeout)
	}
	return nil
}

func (c *send) run(ctx context.Context, s streams) error {
	tls, err := c.tls.dial()
	if err != nil {
		return err
	}
	opts, err := c.path.options(tls...)
	if err != nil {
		return err
	}
	list, err := filetransfer.Gather(c.paths, c.follow)
	if err != nil {
		return err
	}
	opts.Name = "tpipe send"
	opts.HandshakeTimeout = c.timeout
	opts.Limits = filetransfer.Limits()
	pipes, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer pipes.Close()
	p, err := c.dial(ctx, pipes, s)
	if err != nil {
		return interrupted(ctx, flagError("to", err))
	}
	return c.transfer(ctx, p, list, s)
}

// dial opens a pipe to the receiver. While no process listens at the address, it dials again with
// growing pauses, and after a second prints that it waits, until the time of -timeout is over. The
// error is that of the last attempt, or the cause of ctx.
func (c *send) dial(ctx context.Context, pipes *pipe.Context, s streams) (*pipe.Pipe, error) {
	begin, said := time.Now(), false
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		p, err := pipes.Dial(ctx, withScheme(uvName, c.to))
		left := c.timeout - time.Since(begin)
		if err == nil || !absent(err) || left <= 0 {
			return p, err
		}
		if !said && time.Since(begin) >= time.Second {
			said = true
			fmt.Fprintf(s.err, "tpipe send: waiting up to %s for a receiver at %s\n", c.timeout, c.to)
		}
		next := time.NewTimer(min(pause, left))
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// absent reports whether err, the error of dialling, means that no process listens at the address,
// or that its machine cannot be reached yet.
func absent(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, fs.ErrNotExist} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// transfer sends the files of list over p and prints the result, even if it fails after some of
// them. It closes p, or aborts p after an error. It returns the error of the transfer, or
// errInterrupted if a signal has ended ctx, joined with that of printing JSON.
func (c *send) transfer(ctx context.Context, p *pipe.Pipe, list *filetransfer.FileList, s streams) error {
	show := newScreen(s, c.show.quiet, c.show.json)
	t := newTransfer(p, "to", show, c.show.verbose)
	if list.Skipped > 0 {
		show.print(plural(list.Skipped, "file") + " skipped: not *" + filetransfer.Suffix + "\n")
	}
	err := filetransfer.Send(ctx, p, list, filetransfer.SendOptions{Resume: c.resume, Compression: c.codec, Memory: int(c.memory)}, t)
	if err == nil {
		p.Close() // the result does not depend on how the receiver closes
	}
	if unconfirmed := errors.Is(err, filetransfer.ErrUnconfirmed); unconfirmed {
		err = fmt.Errorf("%w: %w", errInterrupted, filetransfer.ErrUnconfirmed)
	} else {
		err = interrupted(ctx, err)
	}
	if c.codec != pipe.CompressionNone {
		stats := p.Stats().Compression
		t.Compression = &compression{stats.Sent.Parts, stats.Sent.Bytes, stats.Sent.WireBytes, stats.Plain.Messages, stats.Plain.Bytes, stats.Refused}
	}
	t.finish(err)
	return errors.Join(err, t.print(s.out, c.show.json))
}
