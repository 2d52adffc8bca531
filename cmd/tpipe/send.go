package main

import (
	"context"
	"errors"
	"flag"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/ferry"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// send is the command that sends files to a recv.
type send struct {
	path    pathFlags
	tls     tlsFlags
	to      string
	paths   []string
	follow  bool
	codec   pipe.Compression
	timeout time.Duration
	show    showFlags
}

func sendEntry() entry {
	return entry{
		name:    "send",
		usage:   "-to HOST:PORT [flags] PATH...",
		summary: "send safetensors files to a recv on another machine",
		help: `Sends files and folders of safetensors to a tpipe recv. A file arrives under its
own name, what is in a folder arrives in a folder of that name; "." and "DIR/."
send what is in a folder without the name. In folders only *.safetensors are
sent, at any depth.

All files are read up to their tensors before anything is sent, and the receiver
sees all names and sizes before it agrees. Files arrive byte for byte as they
are, several tensors at a time. CRC32C guards what was read from the file here
until it is written to the disk there, and is printed for each file.

With -compress the tensors that gain by it travel compressed, to a receiver that
knows how; it takes CPU time at both ends, and is for networks that are slower
than that: s2 for data that repeats itself, zstd also for weights.

A receiver gives up a sender from which nothing has arrived for some time, 30s
by default: see -stall-timeout in tpipe help recv.

The exit code is 0 when the receiver has said that every file is in place:
complete, checked and on disk. After a failure or SIGINT, files that had been
placed stay, and none is there in part.`,
		make: func() command { return &send{} },
	}
}

func (c *send) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.to, "to", "", "`address` of the receiver, HOST:PORT or uv://HOST:PORT")
	fs.BoolVar(&c.follow, "follow", false, "send files that symbolic links in folders lead to; without it such links are an error")
	fs.TextVar(&c.codec, "compress", pipe.CompressionNone, "`codec` to compress tensors with on their way: s2 or zstd")
	fs.DurationVar(&c.timeout, "timeout", 30*time.Second, "longest `time` to wait for the connection")
	c.show.flags(fs)
	c.tls.dialFlags(fs)
	c.path.flags(fs)
}

func (c *send) take(operands []string) error {
	c.paths = operands
	switch {
	case c.to == "":
		return usageErrorf("-to is missing: give the address of a tpipe recv such as 127.0.0.1:7000")
	case len(operands) == 0:
		return usageErrorf("nothing to send: name files or folders")
	case c.codec != pipe.CompressionNone && c.path.dialect == pipe.DialectCompatible:
		return usageErrorf("-compress %s: the compatible dialect has no compression", c.codec)
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
	cargo, err := ferry.Gather(c.paths, c.follow)
	if err != nil {
		return err
	}
	cargo.Compression = c.codec
	opts.Name = "tpipe send"
	opts.HandshakeTimeout = c.timeout
	opts.Limits = ferry.Limits(cargo.Largest())
	pipes, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer pipes.Close()
	p, err := pipes.Dial(ctx, withScheme(c.to))
	if err != nil {
		return interrupted(ctx, blame("to", err))
	}
	return c.transfer(ctx, p, cargo, s)
}

// transfer sends the files and prints the result, also of a part of them.
func (c *send) transfer(ctx context.Context, p *pipe.Pipe, cargo *ferry.Cargo, s streams) error {
	show := newScreen(s, c.show.quiet, c.show.json)
	t := newTransfer(p, "to", show, c.show.verbose)
	if cargo.Skipped > 0 {
		show.print(plural(cargo.Skipped, "file") + " left out: no *" + ferry.Suffix + "\n")
	}
	err := ferry.Send(ctx, p, cargo, t)
	if err == nil {
		p.Close() // a receiver that stays open changes nothing about the result
	}
	err = interrupted(ctx, err)
	if c.codec != pipe.CompressionNone {
		t.compressed(p.Stats().Compression)
	}
	t.finish(err)
	return errors.Join(err, t.print(s.out, c.show.json))
}

// withScheme is an address as a URL.
func withScheme(address string) string {
	if strings.Contains(address, "://") {
		return address
	}
	return "uv://" + address
}
