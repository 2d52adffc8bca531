package ferry

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// work does a part of a file on the side. It has entered the window with so
// many bytes.
func (r *reception) work(l *landing, bytes int, do func() error) {
	r.working.Go(func() {
		err := do()
		r.window.leave(bytes)
		if err != nil {
			r.end(about(l.Name, err))
		}
	})
}

// tensor reads a tensor and writes it to its file.
func (r *reception) tensor(in *pipe.Incoming, l *landing, o *tensorOrder, memory *tensor.Storage) error {
	data, err := memory.Bytes()
	if err != nil {
		return err
	}
	if err := in.Read(context.Background(), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(data)}}); err != nil {
		return err
	}
	if err := r.check(l, o, data); err != nil {
		return err
	}
	return r.write(l, data, l.parts[o.Index].begin)
}

// check compares a tensor with its checksum.
func (r *reception) check(l *landing, o *tensorOrder, data []byte) error {
	r.clock.pause()
	defer r.clock.resume()
	crc := sumOf(data)
	if crc != o.CRC {
		return fmt.Errorf("tensor %d: %w: %08x, sent was %08x", o.Index, ErrChecksum, crc, o.CRC)
	}
	l.sum.set(o.Index, crc, len(data))
	return nil
}

// write writes a piece of a file. After the last one it places the file and reports it to
// the sender.
func (r *reception) write(l *landing, data []byte, offset int) error {
	placed, err := r.toDisk(l, data, offset)
	if err != nil || placed == nil {
		return err
	}
	return r.report(l, placed.CRC32C)
}

// toDisk is the part of write that waits for the disk. It returns the file if it was
// placed.
func (r *reception) toDisk(l *landing, data []byte, offset int) (placed *File, err error) {
	r.clock.pause()
	defer r.clock.resume()
	done, err := l.write(data, offset)
	if err != nil {
		return nil, err
	}
	r.watch.Moved(len(data))
	if !done {
		return nil, nil
	}
	if err := l.place(); err != nil {
		return nil, err
	}
	f := File{l.Name, l.Bytes, len(l.parts), l.sum.total()}
	r.watch.Placed(f)
	return &f, nil
}

// report sends the answer about a file that was placed, and ends the transfer after the
// last one.
func (r *reception) report(l *landing, crc uint32) error {
	m, err := say(answer{Placed: &fileAnswer{l.index, crc}})
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.open, l)
	r.placed++ // before the sender hears of it, and closes
	r.mu.Unlock()
	if err := r.pipe.Write(context.Background(), m); err != nil {
		return err
	}
	r.clock.reset()
	if int(r.told.Add(1)) == len(r.files) {
		r.end(nil)
	}
	return nil
}

// complete reports whether all files are in place.
func (r *reception) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.files != nil && r.placed == len(r.files)
}

// clear removes what was begun and not placed.
func (r *reception) clear() {
	for l := range r.open {
		l.abandon()
	}
	r.store.free(r.files)
}
