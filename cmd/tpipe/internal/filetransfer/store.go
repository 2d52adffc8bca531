package filetransfer

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// StoreOptions bound the transfers of a Store. A field that is 0 stands for its default.
type StoreOptions struct {
	// Overwrite allows received files to replace existing ones.
	Overwrite bool

	// MaxBytes bounds the total bytes of one transfer. Default 1 TiB.
	MaxBytes int

	// Memory bounds the bytes that one transfer has received and not written yet, without
	// the header of one file. Default 64 MiB.
	Memory int

	// MaxSenders bounds the concurrent transfers. Further ones are rejected. Default 16.
	MaxSenders int

	// StallTimeout bounds how long a transfer waits for its sender: for a message, for
	// the next bytes of one, or until the sender reads a confirmation. The transfer then
	// fails with a *StallError, at most an eighth of StallTimeout later. Time in which
	// the receiver uses its disk does not count. Default 30 s.
	StallTimeout time.Duration
}

// withDefaults returns a copy of o in which numbers that are 0 or negative are replaced by their
// defaults.
func (o StoreOptions) withDefaults() StoreOptions {
	for _, d := range []struct {
		field *int
		value int
	}{{&o.MaxBytes, min(1<<40, math.MaxInt)}, {&o.Memory, defaultMemory}, {&o.MaxSenders, 16}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = 30 * time.Second
	}
	return o
}

// Store is a directory that receives files, for several senders at once. All methods may be called
// concurrently. The caller must close it.
type Store struct {
	root    *os.Root
	options StoreOptions

	mu       sync.Mutex
	senders  int
	waiting  []*pipe.Pipe    // before their offers, oldest first
	reserved map[string]bool // names of active transfers, folded
}

// OpenStore opens the directory dir, which must exist and be writable, and returns a Store that
// receives files into it. The caller must close the Store. The error wraps one of package os.
func OpenStore(dir string, o StoreOptions) (*Store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, options: o.withDefaults(), reserved: map[string]bool{}}
	if err := s.checkWritable(); err != nil {
		_ = root.Close() // err is the cause
		return nil, err
	}
	return s, nil
}

// checkWritable creates an empty file in the directory and removes it. It returns nil if both
// succeed, and otherwise an error that wraps one of package os.
func (s *Store) checkWritable() error {
	name := fmt.Sprintf(".%d.tpipe-part", os.Getpid())
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("%s is not writable: %w", s.root.Name(), err)
	}
	return errors.Join(f.Close(), s.root.Remove(name))
}

// Close closes the directory and returns the error of closing it. All calls of Receive must have
// returned.
func (s *Store) Close() error { return s.root.Close() }

// acquireSlot takes one of the MaxSenders slots for senders that have made an offer. It does not
// block: the error matches ErrLimit if all slots are in use. After success the caller must call
// releaseSlot.
func (s *Store) acquireSlot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.senders == s.options.MaxSenders {
		return fmt.Errorf("%w: %d senders are being served; try again later", ErrLimit, s.senders)
	}
	s.senders++
	return nil
}

// releaseSlot frees a slot that acquireSlot has taken.
func (s *Store) releaseSlot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.senders--
}

// maxWaiting bounds the number of pipes without an offer, of some 100 KiB each.
const maxWaiting = 256

var errTooManyWaiting = fmt.Errorf("%w: %d others have connected since, and it has made no offer", ErrLimit, maxWaiting)

// addWaiting adds p to the pipes whose senders have not made an offer yet, until removeWaiting. If
// there are more than maxWaiting of them, it aborts and removes the oldest one, which has had most
// time for its offer.
func (s *Store) addWaiting(p *pipe.Pipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
	if len(s.waiting) > maxWaiting {
		s.waiting[0].Abort(errTooManyWaiting)
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
}

// removeWaiting removes p from the pipes whose senders have not made an offer yet. It does nothing
// if addWaiting has already removed p.
func (s *Store) removeWaiting(p *pipe.Pipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(q *pipe.Pipe) bool { return p == q })
}

// reserve reserves the names of all files for one transfer, until free is called with them. It
// creates no files. With resume a file of the same name and size may exist. The error matches
// ErrBusy if another transfer has reserved one of the names, and otherwise wraps that of checkFree.
// After an error no name is reserved.
func (s *Store) reserve(files []fileOffer, resume bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		if s.reserved[fold(f.Name)] {
			return withName(f.Name, ErrBusy)
		}
		if resume && s.existing(f) != nil {
			continue
		}
		if err := s.checkFree(f.Name); err != nil {
			return withName(f.Name, err)
		}
	}
	for _, f := range files {
		s.reserved[fold(f.Name)] = true
	}
	return nil
}

// free releases the names of files, which reserve has reserved, for other transfers. It does
// nothing if files is empty.
func (s *Store) free(files []fileOffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		delete(s.reserved, fold(f.Name))
	}
}

// checkFree returns nil if no file with that name exists in the directory, or if it may be
// replaced. The error is ErrExists if a file exists and Overwrite is false. Any other error reports
// that it is not a regular file, or is one of package os.
func (s *Store) checkFree(name string) error {
	switch info, err := s.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !s.options.Overwrite:
		return ErrExists
	case !info.Mode().IsRegular():
		return errors.New("exists already, and is not a regular file")
	}
	return nil
}

// check returns nil if the offer o is valid and within the limits of the store's options and the
// free disk space. It does not check whether the files exist. The error matches ErrVersion,
// ErrProtocol or ErrLimit, or is a *NameError or one of package os.
func (s *Store) check(o *offer) error {
	if o.Version != version {
		return fmt.Errorf("%w: version %d, this is %d", ErrVersion, o.Version, version)
	}
	if len(o.Files) == 0 || len(o.Files) > maxFiles {
		return protocolErrorf("an offer of %d files; want 1 to %d", len(o.Files), maxFiles)
	}
	names := make([]string, len(o.Files))
	left := s.options.MaxBytes
	for i, f := range o.Files {
		names[i] = f.Name
		switch {
		case f.Bytes < 0:
			return protocolErrorf("%.200q of %d bytes", f.Name, f.Bytes)
		case f.Bytes > left:
			return fmt.Errorf("%w: the files exceed the -max-bytes of %d", ErrLimit, s.options.MaxBytes)
		}
		left -= f.Bytes
	}
	if err := checkNames(names); err != nil {
		return err
	}
	return s.checkDisk(o)
}

// checkDisk returns nil if the disk has space for the files of the offer o, or if the free space is
// not known. If o asks to resume, bytes that the disk has already need no space. The error matches
// ErrLimit, or is one of package os.
func (s *Store) checkDisk(o *offer) error {
	dir, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	bytes := 0
	for _, f := range o.Files {
		bytes += f.Bytes
		if o.Resume {
			bytes -= s.bytesOnDisk(f)
		}
	}
	if free, known := freeBytes(dir); known && bytes > free {
		return fmt.Errorf("%w: the files have %d bytes, the disk has %d left", ErrLimit, bytes, free)
	}
	return nil
}
