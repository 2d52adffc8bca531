package cudaipc

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
)

// HandleError reports that memory and events of a device have no handles for other processes, or that the
// driver opens none of theirs on it. It matches errors.ErrUnsupported.
type HandleError struct {
	Device device.Device
	Err    error // of the call that the driver refused, or nil if the properties of the device exclude handles
}

func (e *HandleError) Error() string {
	text := fmt.Sprintf("cudaipc: %v has no handles for other processes", e.Device)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns errors.ErrUnsupported and e.Err.
func (e *HandleError) Unwrap() []error {
	if e.Err == nil {
		return []error{errors.ErrUnsupported}
	}
	return []error{errors.ErrUnsupported, e.Err}
}

// inspectHandles records whether the driver excludes handles of g. Drivers before CUDA 12.0 do not know the
// property.
func (g *gpu) inspectHandles() {
	events, err := g.driver.DeviceAttribute(driver.AttributeIPCEvents, g.device.Index)
	if err == nil && events == 0 {
		g.refused.Store(&HandleError{Device: g.device})
	}
}

// handles returns nil, or the *HandleError of g that was recorded.
func (g *gpu) handles() error {
	if err := g.refused.Load(); err != nil {
		return err
	}
	return nil
}

// memHandle returns the handle of the allocation at base. The context must be current. The error is a
// *HandleError, which is recorded, or that of the driver.
func (g *gpu) memHandle(base driver.Ptr) (driver.IPCHandle, error) {
	h, err := g.driver.MemHandle(base)
	return h, g.refusal(err)
}

// newInterprocessEvent returns an event and its handle. The context must be current. The error is a
// *HandleError, which is recorded, or that of the driver.
func (g *gpu) newInterprocessEvent() (driver.Event, driver.IPCHandle, error) {
	e, err := g.driver.NewEvent(driver.EventDisableTiming | driver.EventInterprocess)
	if err != nil {
		return 0, driver.IPCHandle{}, err
	}
	h, err := g.driver.EventHandle(e)
	if err != nil {
		return 0, h, errors.Join(g.refusal(err), g.driver.DestroyEvent(e))
	}
	return e, h, nil
}

// refusal returns err, the error of a call that makes or opens a handle. If the driver does not support or
// permit such calls, it records and returns a *HandleError.
func (g *gpu) refusal(err error) error {
	if !errors.Is(err, driver.ResultNotSupported) && !errors.Is(err, driver.ResultNotPermitted) {
		return err
	}
	refused := &HandleError{g.device, err}
	g.refused.CompareAndSwap(nil, refused)
	return refused
}

// An offer is a nonce and the name of the namespace in which the process has its id. The descriptors, whose
// form is TensorPipe's, have the id only.
const nonceSize = 8

// Offer implements [channel.Prober]. The nonce is random, or a hash of the offer to which it responds.
func (f *IPC) Offer(theirs []byte) []byte {
	nonce := make([]byte, nonceSize)
	if theirs == nil {
		_, _ = rand.Read(nonce) // does not fail
	} else {
		copy(nonce, responseTo(theirs))
	}
	namespace, _ := sysid.NamespaceID(sysid.PID) // Viable has the error
	return append(nonce, namespace...)
}

func responseTo(offer []byte) []byte {
	sum := sha256.Sum256(offer)
	return sum[:nonceSize]
}

// Probe implements [channel.Prober]. It returns an error if the peer has its process id in another namespace,
// because then it cannot open handles of this process, and a [channel.DeviceErrors] with the devices for which
// the driver has refused handles.
func (f *IPC) Probe(offer, shown []byte) error {
	if len(offer) < nonceSize {
		return fmt.Errorf("%w: an offer of %d bytes", channel.ErrProtocol, len(offer))
	}
	if shown != nil && !bytes.Equal(offer[:nonceSize], responseTo(shown)) {
		return errors.New("the peer's offer does not respond to that of this end")
	}
	namespace, err := sysid.NamespaceID(sysid.PID)
	if err != nil {
		return err
	}
	if string(offer[nonceSize:]) != namespace {
		return errOtherNamespace
	}
	failed := channel.DeviceErrors{}
	for _, g := range f.kind.gpus {
		if err := g.handles(); err != nil {
			failed[g.device] = err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

var errOtherNamespace = errors.New("the two processes are in different pid namespaces, between which handles cannot be opened")
