package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/filetransfer"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// transfer is the state and the result of the files sent through one pipe. It is a
// filetransfer.Watcher, and its exported fields are the JSON form of the result.
type transfer struct {
	Peer    string       `json:"peer"`
	Address string       `json:"address"`
	TLS     *identity    `json:"tls"` // null: plain TCP
	Plan    *pipe.Plan   `json:"plan"`
	Files   int          `json:"files"` // complete ones; so are Tensors and Bytes
	Tensors int          `json:"tensors"`
	Bytes   int          `json:"bytes"`
	Seconds float64      `json:"seconds"` // from the offer to the last file
	GBps    float64      `json:"gbytes_per_second"`
	InPlace []placedFile `json:"placed"`
	Error   string       `json:"error,omitempty"`

	Compression *compression `json:"compression,omitempty"` // with -compress

	screen  *screen
	verbose bool
	verb    string // "from" or "to" the peer

	mu           sync.Mutex
	started      time.Time
	total, moved int // bytes added to the screen
	took         time.Duration
}

// placedFile is one file that has its final name at the receiver.
type placedFile struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Tensors int    `json:"tensors"`
	CRC32C  string `json:"crc32c"` // of the whole file
}

// newTransfer returns the transfer over p, before it begins. verb is "from" or "to".
func newTransfer(p *pipe.Pipe, verb string, s *screen, verbose bool) *transfer {
	return &transfer{
		Peer: p.Peer(), Address: p.RemoteAddr(), TLS: identify(p), Plan: p.Plan(), InPlace: []placedFile{},
		screen: s, verbose: verbose, verb: verb,
	}
}

// Accepted implements filetransfer.Watcher. It prints a headline, and adds the transfer to the progress
// bar.
func (t *transfer) Accepted(files, bytes int) {
	head := fmt.Sprintf("%s of %s %s %s, %s dialect, %s\n", plural(files, "file"), byteSize(bytes), t.verb, t.peerName(), t.Plan.Dialect, t.TLS)
	if t.verbose {
		var plan strings.Builder
		printPlan(&plan, t.Plan, true)
		head += plan.String()
	}
	t.screen.print(head)
	t.screen.addTotal(bytes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started, t.total = time.Now(), bytes
}

// peerName returns the name and address of the peer, quoted where needed so that they are safe to
// print.
func (t *transfer) peerName() string {
	if t.Peer == t.Address {
		return t.Address
	}
	return fmt.Sprintf("%s (%s)", filetransfer.Printable(t.Peer), t.Address)
}

// Moved implements filetransfer.Watcher. It advances the progress bar.
func (t *transfer) Moved(bytes int) {
	t.screen.advance(bytes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moved += bytes
}

// Placed implements filetransfer.Watcher. It prints the file and adds it to the result.
func (t *transfer) Placed(f filetransfer.File) {
	crc := fmt.Sprintf("%08x", f.CRC32C)
	t.screen.print(fmt.Sprintf("  %s: %s, %s, crc32c %s\n", f.Name, plural(f.Tensors, "tensor"), byteSize(f.Bytes), crc))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Files++
	t.Tensors += f.Tensors
	t.Bytes += f.Bytes
	t.InPlace = append(t.InPlace, placedFile{f.Name, f.Bytes, f.Tensors, crc})
	t.took = time.Since(t.started)
}

// compression is the effect of -compress on one transfer.
type compression struct {
	Tensors      uint64 `json:"tensors"` // sent compressed
	Bytes        uint64 `json:"bytes"`   // of Tensors, before compression
	WireBytes    uint64 `json:"wire_bytes"`
	PlainTensors uint64 `json:"plain_tensors"` // sent uncompressed
	PlainBytes   uint64 `json:"plain_bytes"`
	Refused      string `json:"refused,omitempty"` // the reason if nothing could be compressed
}

func (c *compression) String() string {
	if c.Refused != "" {
		return "not compressed: " + c.Refused
	}
	return fmt.Sprintf("compressed: %s of %s sent as %s, %s uncompressed", plural(int(c.Tensors), "tensor"),
		byteSize(c.Bytes), byteSize(c.WireBytes), plural(int(c.PlainTensors), "other"))
}

// finish computes the figures of the result, records err if it is not nil, and removes the transfer
// from the progress bar. It must be called once, after the transfer has ended.
func (t *transfer) finish(err error) {
	t.screen.remove(t.total, t.moved)
	if err != nil {
		t.Error = err.Error()
	}
	t.Seconds = t.took.Seconds()
	t.GBps = gigabytesPerSecond(t.Bytes, t.took)
}

// print prints the result: as JSON to w, or as text to the screen if any file is complete. finish must
// have been called.
func (t *transfer) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, t)
	}
	if t.Files == 0 {
		return nil
	}
	if t.Compression != nil {
		t.screen.print(t.Compression.String() + "\n")
	}
	t.screen.print(fmt.Sprintf("%s, %s, %s complete after %s, %s\n", plural(t.Files, "file"), plural(t.Tensors, "tensor"),
		byteSize(t.Bytes), duration(t.took), rate(t.Bytes, t.took)))
	return nil
}
