package main

import (
	"context"
	"errors"
	"flag"
	"strings"
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
rejects the list of all names and sizes. Files arrive byte for byte, several tensors at a
time. A CRC32C protects the bytes from the file here to the disk there and is printed for
each file.

With -compress the tensors that become smaller are sent compressed, if the receiver can
decompress. This takes CPU time at both ends and is for slow networks: s2 for repetitive
data, zstd also for weights.

A receiver drops a sender from which nothing has arrived for some time, 30s by default:
see -stall-timeout in tpipe help recv.

The exit code is 0 if the receiver has confirmed every file: complete, checked and on
disk. After a failure or SIGINT complete files stay, and no part files are left.`,
	make: func() command { return &send{} },
}

func (c *send) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.to, "to", "", "`address` of the receiver, HOST:PORT or uv://HOST:PORT")
	fs.BoolVar(&c.follow, "follow", false, "follow symbolic links to files in folders; without it such links are an error")
	fs.TextVar(&c.codec, "compress", pipe.CompressionNone, "`codec` to compress tensors with: s2 or zstd")
	fs.DurationVar(&c.timeout, "timeout", 30*time.Second, "longest `time` to wait for the connection")
	c.show.flags(fs)
	c.tls.dialFlags(fs)
	c.path.flags(fs)
}

// setOperands implements operandCommand: the files and folders to send.
func (c *send) setOperands(operands []string) error {
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
	list, err := filetransfer.Gather(c.paths, c.follow)
	if err != nil {
		return err
	}
	list.Compression = c.codec
	opts.Name = "tpipe send"
	opts.HandshakeTimeout = c.timeout
	opts.Limits = filetransfer.Limits(list.Largest())
	pipes, err := pipe.New(opts)
	if err != nil {
		return err
	}
	defer pipes.Close()
	p, err := pipes.Dial(ctx, withScheme(c.to))
	if err != nil {
		return interrupted(ctx, flagError("to", err))
	}
	return c.transfer(ctx, p, list, s)
}

// transfer sends the files of list over p and prints the result, even if it fails after some of them.
// It closes p, or aborts it after an error.
func (c *send) transfer(ctx context.Context, p *pipe.Pipe, list *filetransfer.FileList, s streams) error {
	show := newScreen(s, c.show.quiet, c.show.json)
	t := newTransfer(p, "to", show, c.show.verbose)
	if list.Skipped > 0 {
		show.print(plural(list.Skipped, "file") + " skipped: not *" + filetransfer.Suffix + "\n")
	}
	err := filetransfer.Send(ctx, p, list, t)
	if err == nil {
		p.Close() // the result does not depend on how the receiver closes
	}
	err = interrupted(ctx, err)
	if c.codec != pipe.CompressionNone {
		stats := p.Stats().Compression
		t.Compression = &compression{stats.Sent.Parts, stats.Sent.Bytes, stats.Sent.WireBytes, stats.Plain.Messages, stats.Plain.Bytes, stats.Refused}
	}
	t.finish(err)
	return errors.Join(err, t.print(s.out, c.show.json))
}

// withScheme returns an address as a URL. An address without a scheme becomes a URL of uv.
func withScheme(address string) string {
	if strings.Contains(address, "://") {
		return address
	}
	return "uv://" + address
}
