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
	TLS     *identity    `json:"tls"` // null: no TLS
	Plan    *pipe.Plan   `json:"plan"`
	Files   int          `json:"files"` // complete ones; so are Tensors and Bytes
	Tensors int          `json:"tensors"`
	Bytes   int          `json:"bytes"`
	Found   int          `json:"found"`   // of Bytes: the receiver had them before, and they were not sent
	Seconds float64      `json:"seconds"` // from the offer to the last file
	GBps    float64      `json:"gbytes_per_second"`
	InPlace []placedFile `json:"placed"`
	Parts   []keptPart   `json:"parts,omitempty"` // part files that the receiver has kept
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
	Found   int    `json:"found"`  // of Bytes: the receiver had them before
}

// keptPart is a part file with which a later send can resume.
type keptPart struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

// newTransfer returns a transfer over p that has not begun, with the peer and path of p. verb is
// "from" or "to" and precedes the peer's name in the output. The transfer prints to s, with p's
// path if verbose is true.
func newTransfer(p *pipe.Pipe, verb string, s *screen, verbose bool) *transfer {
	return &transfer{
		Peer: p.Peer(), Address: p.RemoteAddr(), TLS: identify(p), Plan: p.Plan(), InPlace: []placedFile{},
		screen: s, verbose: verbose, verb: verb,
	}
}

// Accepted is called when the receiver has accepted the offer, of that number of files and bytes.
// It prints a headline, adds the bytes to the progress bar, and starts the clock. It implements
// filetransfer.Watcher.
func (t *transfer) Accepted(files, bytes int) {
	head := fmt.Sprintf("%s of %s %s %s, %s dialect, %s\n", plural(files, "file"), byteSize(bytes), t.verb, t.peerName(), t.Plan.Dialect, pathText(t.Plan, t.TLS))
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

// peerName returns the name that the peer has given itself and its address, or only the address if
// the name is the address or its URL. A name that is not safe to print is quoted.
func (t *transfer) peerName() string {
	if t.Peer == t.Address || strings.HasSuffix(t.Peer, "://"+t.Address) {
		return t.Address
	}
	return fmt.Sprintf("%s (%s)", filetransfer.Printable(t.Peer), t.Address)
}

// Moved adds the given number of bytes, which were sent or written, to the progress bar. It
// implements filetransfer.Watcher.
func (t *transfer) Moved(bytes int) {
	t.screen.advance(bytes)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moved += bytes
}

// Placed is called when the file f has its final name at the receiver. It prints the file and adds
// it to the result. It implements filetransfer.Watcher.
func (t *transfer) Placed(f filetransfer.File) {
	crc := fmt.Sprintf("%08x", f.CRC32C)
	had := ""
	if f.Found > 0 {
		had = fmt.Sprintf(", %s found at the receiver", byteSize(f.Found))
	}
	t.screen.print(fmt.Sprintf("  %s: %s, %s, crc32c %s%s\n", f.Name, plural(f.Tensors, "tensor"), byteSize(f.Bytes), crc, had))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Files++
	t.Tensors += f.Tensors
	t.Bytes += f.Bytes
	t.Found += f.Found
	t.InPlace = append(t.InPlace, placedFile{f.Name, f.Bytes, f.Tensors, crc, f.Found})
	t.took = time.Since(t.started)
}

// Kept is called for each part file that the receiver has kept. It prints the part file. It
// implements filetransfer.Watcher.
func (t *transfer) Kept(name string, bytes int) {
	t.screen.print(fmt.Sprintf("  %s: %s kept in a part file; send -resume continues\n", name, byteSize(bytes)))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Parts = append(t.Parts, keptPart{name, bytes})
}

// compression is the effect of -compress on one transfer.
type compression struct {
	Chunks      uint64 `json:"chunks"` // sent compressed
	Bytes       uint64 `json:"bytes"`  // of Chunks, before compression
	WireBytes   uint64 `json:"wire_bytes"`
	PlainChunks uint64 `json:"plain_chunks"` // sent uncompressed
	PlainBytes  uint64 `json:"plain_bytes"`
	Refused     string `json:"refused,omitempty"` // the reason if nothing could be compressed
}

func (c *compression) String() string {
	if c.Refused != "" {
		return "not compressed: " + c.Refused
	}
	return fmt.Sprintf("compressed: %s of %s sent as %s, %s uncompressed", plural(int(c.Chunks), "chunk"),
		byteSize(c.Bytes), byteSize(c.WireBytes), plural(int(c.PlainChunks), "other"))
}

// finish computes the time and the rate of the transfer, records err if it is not nil, and removes
// the transfer from the progress bar. It is called once, after the transfer has ended.
func (t *transfer) finish(err error) {
	t.screen.remove(t.total, t.moved)
	if err != nil {
		t.Error = err.Error()
	}
	t.Seconds = t.took.Seconds()
	t.GBps = gigabytesPerSecond(t.Bytes-t.Found, t.took)
}

// print writes the result to w as JSON if asJSON is true. Otherwise it prints a summary to the
// screen, or nothing if no file is complete. The error is that of writing JSON. finish must have
// been called.
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
	had := ""
	if t.Found > 0 {
		had = fmt.Sprintf(" (%s found at the receiver)", byteSize(t.Found))
	}
	t.screen.print(fmt.Sprintf("%s, %s, %s%s complete after %s, %s\n", plural(t.Files, "file"), plural(t.Tensors, "tensor"),
		byteSize(t.Bytes), had, duration(t.took), rate(t.Bytes-t.Found, t.took)))
	return nil
}
