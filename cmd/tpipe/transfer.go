package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/cmd/tpipe/internal/ferry"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// transfer is what is known about the files that go through one pipe, in the
// form in which it is printed as JSON.
type transfer struct {
	Peer    string       `json:"peer"`
	Address string       `json:"address"`
	TLS     *identity    `json:"tls"` // null: plain TCP
	Plan    *pipe.Plan   `json:"plan"`
	Files   int          `json:"files"` // that are in place, as are the next two
	Tensors int          `json:"tensors"`
	Bytes   int          `json:"bytes"`
	Seconds float64      `json:"seconds"` // from the offer to the last file
	GBps    float64      `json:"gbytes_per_second"`
	InPlace []placedFile `json:"placed"`
	Error   string       `json:"error,omitempty"`

	Compression *compression `json:"compression,omitempty"` // where it was asked for

	screen  *screen
	verbose bool
	verb    string // "from" or "to" the peer

	mu           sync.Mutex
	started      time.Time
	total, moved int // as the screen knows them
	took         time.Duration
}

// placedFile is one file that is in place at the receiver.
type placedFile struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Tensors int    `json:"tensors"`
	CRC32C  string `json:"crc32c"` // of the whole file
}

func newTransfer(p *pipe.Pipe, verb string, s *screen, verbose bool) *transfer {
	return &transfer{
		Peer: p.Peer(), Address: p.RemoteAddr(), TLS: identify(p), Plan: p.Plan(), InPlace: []placedFile{},
		screen: s, verbose: verbose, verb: verb,
	}
}

// Accepted implements ferry.Watcher.
func (t *transfer) Accepted(files, bytes int) {
	head := fmt.Sprintf("%s of %s %s %s, %s dialect, %s\n", plural(files, "file"), byteSize(bytes), t.verb, t.who(), t.Plan.Dialect, t.TLS)
	if t.verbose {
		var plan strings.Builder
		printPlan(&plan, t.Plan, true)
		head += plan.String()
	}
	t.screen.print(head)
	t.screen.expect(bytes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started, t.total = time.Now(), bytes
}

// who is the peer, as far as it may be printed.
func (t *transfer) who() string {
	if t.Peer == t.Address {
		return t.Address
	}
	return fmt.Sprintf("%s (%s)", ferry.Printable(t.Peer), t.Address)
}

// Moved implements ferry.Watcher.
func (t *transfer) Moved(bytes int) {
	t.screen.advance(bytes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moved += bytes
}

// Placed implements ferry.Watcher.
func (t *transfer) Placed(f ferry.File) {
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

// compression is what became of the tensors that were to be compressed.
type compression struct {
	Tensors      uint64 `json:"tensors"` // that travelled compressed
	Bytes        uint64 `json:"bytes"`   // of those
	WireBytes    uint64 `json:"wire_bytes"`
	PlainTensors uint64 `json:"plain_tensors"` // that travelled as they are
	PlainBytes   uint64 `json:"plain_bytes"`
	Refused      string `json:"refused,omitempty"` // why nothing could be compressed
}

func (t *transfer) compressed(s pipe.CompressionStats) {
	t.Compression = &compression{s.Sent.Parts, s.Sent.Bytes, s.Sent.WireBytes, s.Plain.Messages, s.Plain.Bytes, s.Refused}
}

func (c *compression) String() string {
	if c.Refused != "" {
		return "not compressed: " + c.Refused
	}
	return fmt.Sprintf("compressed: %s of %s travelled as %s, %s as they are", plural(int(c.Tensors), "tensor"),
		byteSize(c.Bytes), byteSize(c.WireBytes), plural(int(c.PlainTensors), "other"))
}

// finish does the sums. The transfer has ended.
func (t *transfer) finish(err error) {
	t.screen.forget(t.total, t.moved)
	if err != nil {
		t.Error = err.Error()
	}
	t.Seconds = t.took.Seconds()
	t.GBps = gigabytesPerSecond(t.Bytes, t.took)
}

// print prints the result: as JSON to w, or, if there is any, to the screen.
func (t *transfer) print(w io.Writer, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(t)
	}
	if t.Files == 0 {
		return nil
	}
	if t.Compression != nil {
		t.screen.print(t.Compression.String() + "\n")
	}
	t.screen.print(fmt.Sprintf("%s, %s, %s in place after %s, %s\n", plural(t.Files, "file"), plural(t.Tensors, "tensor"),
		byteSize(t.Bytes), duration(t.took), rate(t.Bytes, t.took)))
	return nil
}
