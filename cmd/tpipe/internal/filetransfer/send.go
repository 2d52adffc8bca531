package filetransfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// SendOptions are the options of Send.
type SendOptions struct {
	// Resume asks the receiver which bytes of each file it has. Only the rest is sent: nothing of
	// a file that is equal, and of another one what follows the equal chunks.
	Resume bool

	// Compression is the codec requested for each chunk.
	Compression pipe.Compression

	// Memory bounds the bytes of the chunks that have been read and not been sent yet.
	// Default 64 MiB.
	Memory int
}

// Send offers the files of list to the receiver at the other end of p, and sends them once the
// receiver has accepted. It returns nil when the receiver has confirmed every file. p is then still
// open, and the caller closes it. After an error p is aborted. Send calls w with the progress.
//
// When ctx ends after the receiver has accepted, Send stops sending and waits for the receiver's
// last confirmations, at most ten seconds, so that w gets every file and part file of the receiver.
//
// If ctx has ended, an error is the cause of ctx, and also matches ErrUnconfirmed if it is not
// known which files the receiver has. Otherwise the error is a *FaultError if the receiver has
// reported one. It matches ErrVersion, ErrProtocol or ErrChecksum if the messages of the receiver
// are wrong. For a file of this end it matches ErrChanged or is one of package safetensors or os.
// Any other error is that of the pipe or of an offer that is too large.
func Send(ctx context.Context, p *pipe.Pipe, list *FileList, o SendOptions, w Watcher) error {
	s := &sender{
		pipe: p, list: list, options: o, watch: w,
		sums: make([]*uint32, list.Len()), from: make([]int, list.Len()), found: make(chan *fileFound, list.Len()),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	defer s.cancel(nil)
	s.streaming, s.stopStreaming = context.WithCancelCause(s.ctx)
	stop := context.AfterFunc(ctx, func() { s.interrupt(context.Cause(ctx)) })
	defer stop()
	err := s.run()
	if err != nil && ctx.Err() != nil {
		_, fault := errors.AsType[*FaultError](err)
		certain := fault || s.receiverStopped || !s.accepted.Load()
		if err = context.Cause(ctx); !certain {
			err = fmt.Errorf("%w: %w", err, ErrUnconfirmed)
		}
	}
	if err != nil {
		s.abort(err)
	}
	return err
}

const (
	answerTime = 30 * time.Second // bounds the wait for the answer to an offer
	stopTime   = 10 * time.Second // bounds the wait for the last answers after an interrupt
)

// sender is the sending end of one transfer. abort ends it: all calls on the pipe return, and the
// receiver gets the reason.
type sender struct {
	pipe     *pipe.Pipe
	list     *FileList
	options  SendOptions
	watch    Watcher
	ctx      context.Context // ends with the transfer
	cancel   context.CancelCauseFunc
	accepted atomic.Bool

	streaming     context.Context // ends when no more chunks are to be sent
	stopStreaming context.CancelCauseFunc
	found         chan *fileFound // of the files in their order, which the receiver has sent
	filesFound    int             // number of messages that were put into found

	receiverStopped bool // and has reported its part files

	mu   sync.Mutex
	sums []*uint32 // CRC32C of the files that were written completely and not confirmed yet
	from []int     // how many bytes of each file the receiver had
}

// abort ends the transfer: it aborts the pipe with the reason err, which the receiver gets, and
// cancels s.ctx with the cause err.
func (s *sender) abort(err error) {
	s.pipe.Abort(err)
	s.cancel(err)
}

// interrupt ends the transfer because of cause. If the receiver has accepted the offer, it ends
// s.streaming, so that the receiver is asked to stop, and aborts the transfer only if that does not
// end it within stopTime. Otherwise it aborts the transfer at once.
func (s *sender) interrupt(cause error) {
	if !s.accepted.Load() {
		s.abort(cause)
		return
	}
	s.stopStreaming(cause)
	late := time.NewTimer(stopTime)
	defer late.Stop()
	select {
	case <-s.ctx.Done():
	case <-late.C:
		s.abort(cause)
	}
}

// run sends the offer and the files. It returns nil when the receiver has confirmed all files, and
// otherwise an error. It does not return before its goroutines have ended, and does not close the
// pipe unless it aborts the pipe after an error.
func (s *sender) run() error {
	if err := s.sendOffer(); err != nil {
		return err
	}
	s.watch.Accepted(s.list.Len(), s.list.Bytes)
	s.accepted.Store(true)
	sent := make(chan error, 1)
	go func() { sent <- s.stream() }()
	err := s.readAnswers()
	// A receiver reports a fault before it closes the pipe. The fault takes precedence
	// over the errors of writes that follow from it.
	answered := err != nil && !pipeEnded(err) && s.ctx.Err() == nil
	if err != nil {
		s.abort(err) // a write may be blocked because the receiver does not read any more
	}
	sendErr := <-sent
	if answered || sendErr == nil || pipeEnded(sendErr) {
		return err
	}
	return sendErr
}

// pipeEnded reports whether err, the error of a call on a pipe or nil, means that the peer has
// closed the pipe or was lost.
func pipeEnded(err error) bool {
	return errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost)
}

// sendOffer sends the offer and blocks until the receiver has answered, at most answerTime. It
// returns nil if the receiver has accepted. The error is a *FaultError if the receiver has reported
// one. It matches ErrVersion if the receiver has another version, and ErrProtocol if its answer is
// wrong or does not arrive in time. Any other error is that of the pipe or of an offer that is too
// large.
func (s *sender) sendOffer() error {
	o := &offer{Version: version, Resume: s.options.Resume}
	for _, it := range s.list.items {
		o.Files = append(o.Files, fileOffer{it.name, it.bytes})
	}
	m, err := encode(senderMessage{Offer: o})
	if err != nil {
		return err
	}
	// A receiver may report a fault and close before it has read the offer.
	if err := s.pipe.Write(context.Background(), m); err != nil && !pipeEnded(err) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), answerTime, protocolErrorf("no answer to the offer within %s", answerTime))
	defer cancel()
	a, err := nextAnswer(ctx, s.pipe)
	if fault, ok := errors.AsType[*FaultError](err); ok && fault.Text == oldVersionText {
		return ErrVersion
	}
	switch {
	case err != nil:
		return cmp.Or(context.Cause(ctx), err)
	case !a.Accepted:
		return protocolErrorf("no answer to the offer")
	}
	return nil
}

// oldVersionText is the fault with which a receiver of protocol version 1 rejects an offer of this
// version.
var oldVersionText = protocolErrorf("version %d, this is 1", version).Error()

// readAnswers reads the receiver's messages until all files are confirmed, and passes each to the
// method that handles it. It stops at the first error, which is a *FaultError, matches ErrProtocol
// or ErrChecksum, or is that of the pipe. It is the cause of s.streaming once the receiver has
// stopped as this end has asked.
func (s *sender) readAnswers() error {
	for placed := 0; placed < s.list.Len(); {
		a, err := nextAnswer(context.Background(), s.pipe)
		switch {
		case err != nil:
			return err
		case a.Placed != nil:
			err = s.confirm(a.Placed)
			placed++
		case a.Found != nil:
			err = s.queueFound(a.Found)
		case a.Stopped != nil:
			err = s.stopped(a.Stopped)
		default:
			err = protocolErrorf("an empty answer")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// confirm handles a, the receiver's confirmation of one file: it compares the checksums of both
// ends and reports the file to the watcher. The error matches ErrChecksum if they differ, and
// ErrProtocol if the file does not exist, was not sent completely, or was confirmed before.
func (s *sender) confirm(a *filePlaced) error {
	if a.File < 0 || a.File >= len(s.sums) {
		return protocolErrorf("confirmation of file %d, there are %d", a.File, len(s.sums))
	}
	s.mu.Lock()
	sum, from := s.sums[a.File], s.from[a.File]
	s.sums[a.File] = nil
	s.mu.Unlock()
	it := s.list.items[a.File]
	switch {
	case sum == nil:
		return protocolErrorf("%s was confirmed before it was sent, or twice", it.name)
	case *sum != a.CRC:
		return withName(it.name, ErrChecksum)
	}
	s.watch.Placed(File{Name: it.name, Bytes: it.bytes, Found: from, Tensors: it.tensors, CRC32C: a.CRC})
	return nil
}

// queueFound passes f, the bytes of one file that the receiver has, to the goroutine that sends
// the files. The error matches ErrProtocol if f is invalid, not of the next file, or not asked for.
func (s *sender) queueFound(f *fileFound) error {
	if !s.options.Resume || f.File != s.filesFound || f.File >= s.list.Len() {
		return protocolErrorf("a report of found bytes of file %d, out of order", f.File)
	}
	size := s.list.items[f.File].bytes
	if f.Bytes < 0 || f.Bytes > size || f.Bytes%chunkBytes != 0 && f.Bytes != size || len(f.Sums) != 4*chunksIn(f.Bytes) {
		return protocolErrorf("a report of %d bytes with %d bytes of sums, the file has %d", f.Bytes, len(f.Sums), size)
	}
	s.filesFound++
	s.found <- f // it has space for all files
	return nil
}

// stopped handles a, the receiver's last message after this end was interrupted: it reports the
// part files to the watcher. The error is never nil: the cause of s.streaming, or one that matches
// ErrProtocol if a is invalid or this end has not asked the receiver to stop.
func (s *sender) stopped(a *stopped) error {
	if s.streaming.Err() == nil {
		return protocolErrorf("it has stopped unasked")
	}
	for _, k := range a.Kept {
		if k.File < 0 || k.File >= s.list.Len() || k.Bytes < 0 || k.Bytes > s.list.items[k.File].bytes {
			return protocolErrorf("a part of %d bytes of file %d", k.Bytes, k.File)
		}
		s.watch.Kept(s.list.items[k.File].name, k.Bytes)
	}
	s.receiverStopped = true
	return context.Cause(s.streaming)
}

// written stores, for confirm, sum, the CRC32C of the file with the index file, and from, the
// number of its first bytes that the receiver had. It must be called before the last message of the
// file is written, because the confirmation may follow at once.
func (s *sender) written(file int, sum uint32, from int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[file], s.from[file] = &sum, from
}
