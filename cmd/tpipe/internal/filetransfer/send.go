package filetransfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Send offers the files of list to the receiver at the other end of p and sends them. It returns when
// the receiver has confirmed every file; p is then still open, and the caller closes it. After an error
// p is aborted. w receives the progress.
//
// The error is a *FaultError if the receiver has reported one. It matches ErrProtocol or ErrChecksum if
// the messages of the receiver are wrong. For a file of this end it matches ErrChanged or is one of
// package safetensors or os. Otherwise it is the cause of ctx or the error of the pipe.
func Send(ctx context.Context, p *pipe.Pipe, list *FileList, w Watcher) error {
	s := &sender{pipe: p, list: list, watch: w, sums: make([]*fileSum, list.Len())}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	stop := context.AfterFunc(ctx, func() { s.abort(context.Cause(ctx)) })
	defer stop()
	err := s.run()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.abort(err)
	}
	return err
}

// answerTime bounds the wait for the answer to an offer.
const answerTime = 30 * time.Second

// sender is the sending end of one transfer. abort ends it: all calls on the pipe return, and the
// receiver gets the reason.
type sender struct {
	pipe   *pipe.Pipe
	list   *FileList
	watch  Watcher
	ctx    context.Context // ends with the transfer
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	sums []*fileSum // of the files that were written completely
}

// abort ends the transfer with err as its reason.
func (s *sender) abort(err error) {
	s.pipe.Abort(err)
	s.cancel(err)
}

// run sends the offer and the files. It returns nil when the receiver has confirmed all files, and
// otherwise an error as Send does. No goroutine of the transfer is left then.
func (s *sender) run() error {
	if err := s.sendOffer(); err != nil {
		return err
	}
	s.watch.Accepted(s.list.Len(), s.list.Bytes)
	sent := make(chan error, 1)
	go func() { sent <- s.stream() }()
	err := s.awaitPlaced()
	// A receiver reports a fault before it closes the pipe. The fault takes precedence
	// over the errors of writes that follow from it.
	faultReported := err != nil && !pipeEnded(err) && s.ctx.Err() == nil
	if err != nil {
		s.abort(err) // a write may be blocked because the receiver does not read any more
	}
	sendErr := <-sent
	if faultReported || sendErr == nil || pipeEnded(sendErr) {
		return err
	}
	return sendErr
}

// pipeEnded reports whether err means that the peer has closed the pipe or was lost.
func pipeEnded(err error) bool {
	return errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrPeerLost)
}

// sendOffer sends the offer and blocks until the receiver has accepted it, or for answerTime. The error
// is a *FaultError, matches ErrProtocol, or is that of the pipe.
func (s *sender) sendOffer() error {
	o := &offer{Version: version}
	for _, it := range s.list.items {
		o.Files = append(o.Files, fileOffer{it.name, it.bytes, it.largest})
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
	switch {
	case err != nil:
		return cmp.Or(context.Cause(ctx), err)
	case !a.Accepted:
		return protocolErrorf("no answer to the offer")
	}
	return nil
}

// awaitPlaced blocks until the receiver has confirmed every file. The error is a *FaultError, matches
// ErrProtocol or ErrChecksum, or is that of the pipe.
func (s *sender) awaitPlaced() error {
	for range s.list.items {
		a, err := nextAnswer(context.Background(), s.pipe)
		if err != nil {
			return err
		}
		if a.Placed == nil {
			return protocolErrorf("an empty answer")
		}
		if err := s.confirm(a.Placed); err != nil {
			return err
		}
	}
	return nil
}

// confirm handles the receiver's confirmation of one file: it compares the checksums of both ends and
// notifies the watcher. The error matches ErrChecksum or ErrProtocol.
func (s *sender) confirm(a *filePlaced) error {
	if a.File < 0 || a.File >= len(s.sums) {
		return protocolErrorf("confirmation of file %d, there are %d", a.File, len(s.sums))
	}
	s.mu.Lock()
	sum := s.sums[a.File]
	s.sums[a.File] = nil
	s.mu.Unlock()
	it := s.list.items[a.File]
	switch {
	case sum == nil:
		return protocolErrorf("%s was confirmed before it was sent, or twice", it.name)
	case sum.total() != a.CRC:
		return withName(it.name, ErrChecksum)
	}
	s.watch.Placed(File{it.name, it.bytes, it.tensors, a.CRC})
	return nil
}

// written records the checksum of a file for confirm. It must be called before the last message of the
// file is written, since the confirmation may follow at once.
func (s *sender) written(file int, sum *fileSum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sums[file] = sum
}

// stream writes all files to the pipe, as many tensors at a time as the window allows, and returns its
// first error. When it returns no goroutine uses the memory of the tensors. After an error it has ended
// the transfer.
func (s *sender) stream() error {
	st := &streamer{sender: s, window: newWindow(), pool: newPool()}
	for i := range s.list.items {
		if err := st.file(i); err != nil {
			st.stop(err)
			break
		}
	}
	st.leaving.Wait()
	return st.err
}

// streamer reads files and writes them to the pipe. Its methods are called by one goroutine, except for
// stop.
type streamer struct {
	*sender
	window  *window
	pool    *tensor.Pool
	leaving sync.WaitGroup

	once sync.Once
	err  error // the first one
}

// stop records err as the error of stream and ends the transfer. Only the first call has an effect.
func (s *streamer) stop(err error) {
	s.once.Do(func() {
		if s.ctx.Err() != nil { // err is a consequence of the cancellation
			err = context.Cause(s.ctx)
		}
		s.err = err
		if pipeEnded(err) {
			s.cancel(err) // without Abort, because the last message of the receiver can still be read
		} else {
			s.abort(err)
		}
	})
}

// file sends the file of the list with that index. Its last tensors may still be being written when it
// returns. The error is ErrChanged if the file differs from what was offered, one of package os or
// safetensors, or that of the pipe.
func (s *streamer) file(index int) error {
	it := s.list.items[index]
	src, err := openSource(it.path)
	if err != nil {
		return err
	}
	defer src.file.Close()
	if int(src.info.Size()) != it.bytes || len(src.parts) != it.tensors {
		return withName(it.path, ErrChanged)
	}
	sum := newFileSum(src.head, len(src.parts))
	if len(src.parts) == 0 {
		s.written(index, &sum)
	}
	m, err := encode(senderMessage{File: &fileHead{index, sumOf(src.head)}})
	if err != nil {
		return err
	}
	m.Payloads = []pipe.Payload{{Data: src.head}}
	if err := s.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	s.watch.Moved(len(src.head))
	for i := range src.parts {
		if err := s.tensor(index, i, src, &sum); err != nil {
			return withName(it.path, err)
		}
	}
	return nil
}

// tensor waits for space in the window, reads a tensor of src and starts to send it. A goroutine
// releases the memory when the write has ended, and ends the transfer if it has failed. The error is
// that of load, of the allocation, or the cause of s.ctx.
func (s *streamer) tensor(file, index int, src *source, sum *fileSum) error {
	at := src.parts[index]
	if err := s.window.enter(s.ctx, at.bytes); err != nil {
		return err
	}
	memory, err := s.pool.Alloc(at.bytes)
	if err != nil {
		s.window.leave(at.bytes)
		return err
	}
	op, err := s.load(file, index, src, sum, memory)
	if err != nil {
		memory.Release()
		s.window.leave(at.bytes)
		return err
	}
	s.leaving.Go(func() {
		<-op.Done() // at the latest when the pipe ends
		memory.Release()
		s.window.leave(at.bytes)
		if err := op.Err(); err != nil {
			s.stop(err)
			return
		}
		s.watch.Moved(at.bytes)
	})
	return nil
}

// load reads a tensor of src into memory and starts to write it to the pipe. The returned operation
// uses the memory until it is done. After an error nothing uses it. With the last tensor load checks
// that the file has not changed and records the file's checksum.
func (s *streamer) load(file, index int, src *source, sum *fileSum, memory *tensor.Storage) (*pipe.WriteOp, error) {
	data, err := memory.Bytes()
	if err != nil {
		return nil, err
	}
	if err := src.read(data, src.parts[index].begin); err != nil {
		return nil, fmt.Errorf("tensor %d: %w", index, err)
	}
	crc := sumOf(data)
	sum.set(index, crc, len(data))
	if index == len(src.parts)-1 {
		if err := src.check(); err != nil { // before the receiver can complete the file
			return nil, err
		}
		s.written(file, sum)
	}
	buf, err := memory.Buffer()
	if err != nil {
		return nil, err
	}
	m, err := encodeTensor(tensorHead{file, index, crc}, buf)
	if err != nil {
		return nil, err
	}
	m.Tensors[0].Compression = s.list.Compression
	return s.pipe.WriteAsync(context.Background(), m), nil
}
