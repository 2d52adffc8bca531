package filetransfer

import (
	"cmp"
	"context"
	"path"
	"sync"
)

// flushBytes is the number of bytes after which a part file is written to disk, so that the disk works
// while further bytes arrive.
const flushBytes = 32 << 20

const (
	maxUnplaced = 256 // bounds the complete files of a transfer that wait for their final names
	maxSyncs    = 32  // bounds the files that a transfer flushes at the same time
)

// writtenBytes reports that the first end bytes of file were written to the part file.
type writtenBytes struct {
	file *partFile
	end  int
}

// flushFiles handles the values of r.written until that is closed. It starts to write the bytes of
// a part file to disk each time flushBytes more were written to the file, and after the last byte.
// It then passes the file to placeFiles. It reports no errors: placeFiles does.
func (r *receiver) flushFiles() {
	defer close(r.complete)
	for w := range r.written {
		p := w.file
		if n := w.end - p.flushed; !p.named && n > 0 && (n >= flushBytes || w.end == p.Bytes) {
			r.clock.pause()
			startWriteback(p.file, p.flushed, n)
			r.clock.resume()
			p.flushed = w.end
		}
		if w.end == p.Bytes {
			r.complete <- p
		}
	}
}

// placeFiles gives the files of r.complete their final names, all that wait at once, and confirms
// them to the sender, until r.complete is closed. After an error, or when the transfer has ended, it
// only receives from r.complete. After the last file of the offer it ends the transfer.
func (r *receiver) placeFiles() {
	for p := range r.complete {
		batch := []*partFile{p}
		for range len(r.complete) { // there is no other receiver
			batch = append(batch, <-r.complete)
		}
		if r.ctx.Err() != nil {
			continue
		}
		r.clock.pause()
		placed, err := r.store.place(batch)
		r.clock.resume()
		for _, p := range placed {
			err = cmp.Or(err, r.confirm(p))
		}
		if err != nil {
			r.end(err)
		} else if r.allPlaced() {
			r.end(nil)
		}
	}
}

// confirm reports the file p, which has its final name, to the watcher and to the sender. The error
// is that of the pipe.
func (r *receiver) confirm(p *partFile) error {
	r.clock.pause()
	r.watch.Placed(File{Name: p.Name, Bytes: p.Bytes, Found: p.found, Tensors: p.tensors, CRC32C: p.sum})
	r.clock.resume()
	m, err := encode(receiverMessage{Placed: &filePlaced{p.index, p.sum}})
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.open, p)
	r.placed++ // before the confirmation, after which the sender may close
	r.mu.Unlock()
	if err := r.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	r.clock.reset()
	return nil
}

// place flushes files to disk, gives them their final names, closes them, and flushes the
// directories above them. All their bytes must have been written. A file that has its final name
// already needs none of that. It returns the files that have their final names. The error is the
// first one of a file or a directory: that of checkFree with the name of the file, or one of
// package os. If a directory could not be flushed, no file is returned. The caller must call abandon
// for the files that are not returned.
func (s *Store) place(files []*partFile) (placed []*partFile, err error) {
	synced := syncFiles(files)
	dirs := map[string]bool{}
	for i, p := range files {
		if !p.named {
			fault := synced[i]
			if fault == nil {
				fault = p.rename()
			}
			if fault != nil {
				err = cmp.Or(err, withName(p.Name, fault))
				continue
			}
			for dir := path.Dir(p.Name); !dirs[dir]; dir = path.Dir(dir) {
				dirs[dir] = true
			}
		}
		placed = append(placed, p)
	}
	for dir := range dirs {
		if fault := syncDirectory(s.root, dir); fault != nil {
			return nil, cmp.Or(err, fault)
		}
	}
	return placed, err
}

// syncFiles flushes those of files to disk that do not have their final names yet, up to maxSyncs
// at the same time, so that the file system can write the metadata of several by one commit. The
// elements of the result are the errors of package os, in the order of files.
func syncFiles(files []*partFile) []error {
	errs := make([]error, len(files))
	slots := make(chan struct{}, maxSyncs)
	var syncing sync.WaitGroup
	for i, p := range files {
		if p.named {
			continue
		}
		slots <- struct{}{}
		syncing.Go(func() {
			errs[i] = p.file.Sync()
			<-slots
		})
	}
	syncing.Wait()
	return errs
}

// rename gives the part file its final name and closes it. The error is that of checkFree, or one
// of package os.
func (p *partFile) rename() error {
	if err := p.store.checkFree(p.Name); err != nil { // one may have been created since the offer
		return err
	}
	if err := p.store.root.Rename(partOf(p.Name), p.Name); err != nil {
		return err
	}
	p.named = true
	return p.file.Close()
}
