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
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// StoreOptions bound the transfers of a Store. A field that is 0 stands for its default.
type StoreOptions struct {
	// Overwrite allows received files to replace existing ones.
	Overwrite bool

	// MaxBytes bounds the total bytes of one transfer. Default 1 TiB.
	MaxBytes int

	// MaxTensor bounds the bytes of one tensor, which must fit into memory. Pass the same
	// number to [Limits]. Default 8 GiB.
	MaxTensor int

	// MaxSenders bounds the concurrent transfers. Further ones are rejected. Default 16.
	MaxSenders int

	// StallTimeout bounds how long a transfer waits for its sender: for a message, for
	// the next bytes of one, or until the sender reads a confirmation. The transfer then
	// fails with a *StallError, at most an eighth of StallTimeout later. Time in which
	// the receiver uses its disk does not count. Default 30 s.
	StallTimeout time.Duration
}

// withDefaults returns o with defaults for the fields that are 0.
func (o StoreOptions) withDefaults() StoreOptions {
	for _, d := range []struct {
		field *int
		value int
	}{{&o.MaxBytes, min(1<<40, math.MaxInt)}, {&o.MaxTensor, min(8<<30, math.MaxInt)}, {&o.MaxSenders, 16}} {
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
	pool    *tensor.Pool // of all transfers

	mu       sync.Mutex
	senders  int
	waiting  []*pipe.Pipe    // before their offers, oldest first
	reserved map[string]bool // names of active transfers, folded
}

// OpenStore opens a directory, which must exist and be writable. The caller must close the Store. The
// error is one of package os.
func OpenStore(dir string, o StoreOptions) (*Store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, options: o.withDefaults(), pool: newPool(), reserved: map[string]bool{}}
	if err := s.checkWritable(); err != nil {
		_ = root.Close() // err is the cause
		return nil, err
	}
	return s, nil
}

// checkWritable returns an error unless a file can be created in the directory and removed.
func (s *Store) checkWritable() error {
	name := fmt.Sprintf(".%d.tpipe-part", os.Getpid())
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("%s is not writable: %w", s.root.Name(), err)
	}
	return errors.Join(f.Close(), s.root.Remove(name))
}

// Close closes the directory. No call of Receive may be active any more.
func (s *Store) Close() error { return s.root.Close() }

// acquireSlot takes one of the slots for senders that have made an offer. The error matches ErrLimit if
// all are in use. After success the caller must call releaseSlot.
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

// addWaiting registers a pipe whose sender has not made its offer yet, until removeWaiting. If there
// are more than maxWaiting such pipes it aborts the oldest one, which has had most time for its offer.
func (s *Store) addWaiting(p *pipe.Pipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
	if len(s.waiting) > maxWaiting {
		s.waiting[0].Abort(errTooManyWaiting)
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
}

// removeWaiting reverts addWaiting.
func (s *Store) removeWaiting(p *pipe.Pipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(q *pipe.Pipe) bool { return p == q })
}

// reserve reserves the names of all files of an offer for one transfer, until free. After an error it
// has reserved none. The error matches ErrBusy if another transfer has reserved one of them, or is that
// of checkFree.
func (s *Store) reserve(files []fileOffer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		if s.reserved[fold(f.Name)] {
			return withName(f.Name, ErrBusy)
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

// free reverts reserve.
func (s *Store) free(files []fileOffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		delete(s.reserved, fold(f.Name))
	}
}

// checkFree returns nil if a file may be created under the name, or may replace the file there. The
// error is ErrExists if the options forbid to replace it. Other errors report that it is not a regular
// file, or are of package os.
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

// check returns an error unless an offer is valid and within the options and the free disk space. The
// error matches ErrProtocol or ErrLimit, or is a *NameError or one of package os.
func (s *Store) check(o *offer) error {
	if o.Version != version {
		return protocolErrorf("version %d, this is %d", o.Version, version)
	}
	if len(o.Files) == 0 || len(o.Files) > maxFiles {
		return protocolErrorf("an offer of %d files; want 1 to %d", len(o.Files), maxFiles)
	}
	names := make([]string, len(o.Files))
	left := s.options.MaxBytes
	for i, f := range o.Files {
		names[i] = f.Name
		switch {
		case f.Bytes < 0 || f.Largest < 0 || f.Largest > f.Bytes:
			return protocolErrorf("%.200q of %d bytes with a tensor of %d", f.Name, f.Bytes, f.Largest)
		case f.Bytes > left:
			return fmt.Errorf("%w: the files exceed the -max-bytes of %d", ErrLimit, s.options.MaxBytes)
		}
		if err := s.checkTensor(f.Name, f.Largest); err != nil {
			return err
		}
		left -= f.Bytes
	}
	if err := checkNames(names); err != nil {
		return err
	}
	dir, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	bytes := s.options.MaxBytes - left
	if free, known := freeBytes(dir); known && bytes > free {
		return fmt.Errorf("%w: the files have %d bytes, the disk has %d left", ErrLimit, bytes, free)
	}
	return nil
}

// checkTensor returns an error that matches ErrLimit if a tensor of the named file, with that size, is
// larger than the options allow.
func (s *Store) checkTensor(file string, bytes int) error {
	if bytes > s.options.MaxTensor {
		return fmt.Errorf("%w: %.200q has a tensor of %d bytes, the -limit is %d", ErrLimit, file, bytes, s.options.MaxTensor)
	}
	return nil
}
