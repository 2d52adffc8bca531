package ferry

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

// StoreOptions bound what a Store takes. Fields of 0 take the defaults.
type StoreOptions struct {
	// Overwrite lets files replace those that have their names.
	Overwrite bool

	// MaxBytes bounds all files of one transfer together. Default 1 TiB.
	MaxBytes int

	// MaxTensor bounds one tensor, which has to fit into memory. Use [Limits]
	// for the context, with the same number. Default 8 GiB.
	MaxTensor int

	// Senders bounds the transfers at one time; further ones are refused.
	// Default 16.
	Senders int

	// StallTimeout bounds how long a transfer waits for its sender: for a message, for
	// the next bytes of one, or until an answer is taken in. It then fails with a
	// *StallError, after an eighth of that more at most. Time in which the receiver
	// uses its disk does not count. Default 30 s.
	StallTimeout time.Duration
}

func (o StoreOptions) withDefaults() StoreOptions {
	for _, d := range []struct {
		field *int
		value int
	}{{&o.MaxBytes, min(1<<40, math.MaxInt)}, {&o.MaxTensor, min(8<<30, math.MaxInt)}, {&o.Senders, 16}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = 30 * time.Second
	}
	return o
}

// Store is a directory that receives files. All methods may be called
// concurrently.
type Store struct {
	root    *os.Root
	options StoreOptions
	pool    *tensor.Pool // of all transfers

	mu      sync.Mutex
	senders int
	waiting []*pipe.Pipe    // without an offer yet, oldest first
	coming  map[string]bool // names under way, folded
}

// OpenStore opens a directory, which must exist, and tries whether files can be
// made there. The caller closes the Store.
func OpenStore(dir string, o StoreOptions) (*Store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, options: o.withDefaults(), pool: newPool(), coming: map[string]bool{}}
	if err := s.try(); err != nil {
		_ = root.Close() // err says more
		return nil, err
	}
	return s, nil
}

// try makes a file and removes it.
func (s *Store) try() error {
	name := fmt.Sprintf(".%d.tpipe-part", os.Getpid())
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("nothing can be written to %s: %w", s.root.Name(), err)
	}
	return errors.Join(f.Close(), s.root.Remove(name))
}

// Close gives the directory back. No Receive may be under way.
func (s *Store) Close() error { return s.root.Close() }

// admit counts a sender that has made an offer, unless there are too many.
func (s *Store) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.senders == s.options.Senders {
		return fmt.Errorf("%w: %d senders are being served; try again later", ErrLimit, s.senders)
	}
	s.senders++
	return nil
}

func (s *Store) dismiss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.senders--
}

// maxWaiting bounds the pipes without an offer. Each costs some 100 KiB.
const maxWaiting = 256

var errCrowded = fmt.Errorf("%w: %d others have connected since, and it has made no offer", ErrLimit, maxWaiting)

// wait notes a pipe without an offer. If there are too many the oldest is aborted: a
// sender makes its offer at once, and need not wait for those that never do.
func (s *Store) wait(p *pipe.Pipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, p)
	if len(s.waiting) > maxWaiting {
		s.waiting[0].Abort(errCrowded)
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
}

func (s *Store) endWait(p *pipe.Pipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(q *pipe.Pipe) bool { return p == q })
}

// reserve keeps the names of an offer for one transfer, if they are free here
// and in all other transfers.
func (s *Store) reserve(files []offered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		if s.coming[fold(f.Name)] {
			return about(f.Name, ErrBusy)
		}
		if err := s.vacant(f.Name); err != nil {
			return about(f.Name, err)
		}
	}
	for _, f := range files {
		s.coming[fold(f.Name)] = true
	}
	return nil
}

func (s *Store) free(files []offered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		delete(s.coming, fold(f.Name))
	}
}

// vacant fails unless a file may be given that name.
func (s *Store) vacant(name string) error {
	switch info, err := s.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !s.options.Overwrite:
		return ErrExists
	case !info.Mode().IsRegular():
		return errors.New("exists already, and is no file that could be replaced")
	}
	return nil
}

// check fails unless an offer is one that the options, and the disk, allow.
func (s *Store) check(o *offer) error {
	if o.Version != version {
		return brokenf("version %d, this is %d", o.Version, version)
	}
	if len(o.Files) == 0 || len(o.Files) > maxFiles {
		return brokenf("an offer of %d files; want 1 to %d", len(o.Files), maxFiles)
	}
	names := make([]string, len(o.Files))
	left := s.options.MaxBytes
	for i, f := range o.Files {
		names[i] = f.Name
		switch {
		case f.Bytes < 0 || f.Largest < 0 || f.Largest > f.Bytes:
			return brokenf("%.200q of %d bytes with a tensor of %d", f.Name, f.Bytes, f.Largest)
		case f.Bytes > left:
			return fmt.Errorf("%w: the files have more than the -max-bytes of %d", ErrLimit, s.options.MaxBytes)
		}
		if err := s.checkTensor(f.Name, f.Largest); err != nil {
			return err
		}
		left -= f.Bytes
	}
	if err := checkNames(names); err != nil {
		return err
	}
	return s.checkSpace(s.options.MaxBytes - left)
}

// checkTensor fails for a tensor that would take too much memory.
func (s *Store) checkTensor(file string, bytes int) error {
	if bytes > s.options.MaxTensor {
		return fmt.Errorf("%w: %.200q has a tensor of %d bytes, the -limit is %d", ErrLimit, file, bytes, s.options.MaxTensor)
	}
	return nil
}

// checkSpace fails where the disk cannot hold so many bytes, as far as it says.
func (s *Store) checkSpace(bytes int) error {
	dir, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if free, known := freeBytes(dir); known && bytes > free {
		return fmt.Errorf("%w: the files have %d bytes, the disk has %d left", ErrLimit, bytes, free)
	}
	return nil
}
