package xth

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// checkMemory returns nil if a channel for kind can copy the memory of buf: it is not host memory, of
// that kind, and valid on a stream, which orders the copy. Otherwise the error matches device.ErrMemory
// or device.ErrStream.
func checkMemory(kind device.Kind, buf device.Buffer) error {
	switch d := buf.Device(); {
	case buf.IsHost() || d.Kind != kind.Name():
		return fmt.Errorf("memory of %v in a channel for %s: %w", d, kind.Name(), device.ErrMemory)
	case buf.Stream() == nil:
		return fmt.Errorf("memory of %v without a stream: %w", d, device.ErrStream)
	}
	return nil
}

// recordWritten returns an event that completes after the present work of the stream of src, memory
// of kind; the caller must release it. The error is that of checkMemory, or of recording the event.
func recordWritten(kind device.Kind, src device.Buffer) (device.Event, error) {
	if err := checkMemory(kind, src); err != nil {
		return nil, err
	}
	return src.Stream().Record()
}

// enqueueCopy enqueues a copy of src to dst, memory of kind, on the stream of dst. The copy waits for
// written but not for later work on the stream of src, which itself waits for the copy. enqueueCopy
// waits for neither. After an error, unless a stream has failed, nothing is enqueued.
func enqueueCopy(kind device.Kind, dst, src device.Buffer, written device.Event) error {
	if err := checkMemory(kind, dst); err != nil {
		return err
	}
	if err := dst.Stream().Wait(written); err != nil {
		return err
	}
	if err := kind.Copy(dst, src.WithStream(nil)); err != nil {
		return err
	}
	return src.Stream().WaitFor(dst.Stream())
}
