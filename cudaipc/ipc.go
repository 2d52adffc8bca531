package cudaipc

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"os"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
)

// IPCName is the name of the channel between two processes in TensorPipe's handshake.
const IPCName = "cuda_ipc"

// IPC is a factory of channels between GPUs of two processes of one machine: the receiver maps the
// sender's memory and copies it once, on its own stream. In the compatible dialect tensors are copied
// through an outbox of the sender, as by TensorPipe. See [NewIPC].
type IPC struct {
	kind     *Kind
	unusable map[device.Device]error
}

var (
	_ channel.Factory        = (*IPC)(nil)
	_ channel.Explainer      = (*IPC)(nil)
	_ channel.DeviceReporter = (*IPC)(nil)
	_ channel.Prober         = (*IPC)(nil)
)

// NewIPC returns a factory of channels for the devices of kind. The devices of a pair are one GPU, or
// two that can access each other's memory. Devices without handles for other processes are not served, see
// [HandleError]. If the driver refuses a handle later, the transfer fails, and pipes that are opened after
// that use another channel for the device.
func NewIPC(kind *Kind) *IPC {
	f := &IPC{kind: kind, unusable: kind.Unusable()}
	for _, d := range kind.Devices() {
		if err := kind.gpus[d.Index].handles(); err != nil {
			f.unusable[d] = err
		}
	}
	return f
}

// Viable returns nil if a device is served and this process can be identified, and otherwise the reason.
func (f *IPC) Viable() error {
	if _, err := sysid.Process(); err != nil {
		return err
	}
	if err := f.kind.Viable(); err != nil {
		return err
	}
	var reasons []error
	for _, d := range f.kind.Devices() {
		if f.unusable[d] == nil {
			return nil
		}
		reasons = append(reasons, f.unusable[d])
	}
	return errtext.Join(reasons...)
}

// DeviceDescriptors returns the descriptor of each GPU that is served, in TensorPipe's form: the id of the
// running kernel, the process, and the UUID of the GPU. It initialises no context.
func (f *IPC) DeviceDescriptors() map[device.Device]string {
	boot, err := sysid.BootID()
	if err != nil {
		return nil
	}
	out := make(map[device.Device]string)
	for _, g := range f.kind.gpus {
		if f.unusable[g.device] == nil {
			out[g.device] = ipcPlace{boot: boot, pid: int64(os.Getpid()), uuid: uuidText(g.uuid)}.encode()
		}
	}
	return out
}

// Unusable implements [channel.DeviceReporter].
func (f *IPC) Unusable() map[device.Device]error { return maps.Clone(f.unusable) }

// ipcPlace is the content of a device descriptor.
type ipcPlace struct {
	boot string
	pid  int64
	uuid string
}

func (p ipcPlace) encode() string {
	dst := nop.AppendStructHeader(nil, 3)
	dst = nop.AppendString(dst, p.boot)
	dst = nop.AppendInt(dst, p.pid)
	return string(nop.AppendString(dst, p.uuid))
}

func decodePlace(text string) (p ipcPlace, ok bool) {
	d := nop.NewDecoder([]byte(text))
	d.Struct(3)
	p.boot = string(d.Bytes())
	p.pid = d.Int64()
	p.uuid = string(d.Bytes())
	return p, d.Finish() == nil
}

// processIn returns the process that all of the peer's descriptors name, or 0 if they do not, or if there
// is no such process here: the peer may be in another namespace of processes.
func processIn(descriptors map[device.Device]string) int {
	process := 0
	for _, text := range descriptors {
		p, ok := decodePlace(text)
		if !ok || p.pid <= 0 || p.pid > math.MaxInt32 || process != 0 && process != int(p.pid) {
			return 0
		}
		process = int(p.pid)
	}
	if process != os.Getpid() && !processLives(process) {
		return 0
	}
	return process
}

// uuidText returns u as 32 digits in groups of 8, 4, 4, 4 and 12.
func uuidText(u driver.UUID) string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// CanCommunicate reports whether the two GPUs are in one machine and in two processes, because a
// process cannot map memory that it has exported itself, and whether they are one GPU or this process
// sees both and each can access the memory of the other.
func (f *IPC) CanCommunicate(local, remote string) bool { return f.Obstacle(local, remote) == "" }

// Obstacle implements [channel.Explainer].
func (f *IPC) Obstacle(local, remote string) string {
	here, ok := decodePlace(local)
	there, known := decodePlace(remote)
	switch {
	case !ok || !known:
		return "the peer's description of its GPU has another format"
	case here.boot != there.boot:
		return "the peer is on another machine"
	case here.pid == there.pid:
		return "both ends are in one process, which cannot map memory that it exports"
	}
	near, far := f.gpuWith(here.uuid), f.gpuWith(there.uuid)
	switch {
	case near == nil:
		return "this process does not use a GPU " + here.uuid
	case far == nil:
		return "this process does not use the peer's GPU " + there.uuid
	case near != far && !(f.kind.canAccess(near, far) && f.kind.canAccess(far, near)):
		return fmt.Sprintf("%v and the peer's GPU, here %v, cannot access each other's memory", near.device, far.device)
	}
	return ""
}

func (f *IPC) gpuWith(uuid string) *gpu {
	for _, g := range f.kind.gpus {
		if g.unusable == nil && uuidText(g.uuid) == uuid {
			return g
		}
	}
	return nil
}

// canAccess reports whether work on g can access memory of peer.
func (k *Kind) canAccess(g, peer *gpu) bool {
	ok, err := k.driver.DeviceCanAccessPeer(g.device.Index, peer.device.Index)
	return ok && err == nil
}

// Connections returns 1 in the native dialect, and TensorPipe's 2 in the compatible one.
func (f *IPC) Connections(native bool) int {
	if native {
		return 1
	}
	return 2
}

// New returns this end of a channel, which owns the connections of link. It initialises no context.
func (f *IPC) New(_ context.Context, link channel.Link, _ channel.Role) (channel.Channel, error) {
	err := channel.CheckLink(link, f.Connections(link.Native))
	if err == nil {
		if err = f.Viable(); err != nil {
			_ = channel.CloseLink(link)
		}
	}
	if err != nil {
		return nil, &channel.Error{Channel: IPCName, Peer: link.Peer, Err: err}
	}
	peer := processIn(link.Remote)
	if link.Native {
		return newIPCEnd(f.kind, link, peer), nil
	}
	return newStagedEnd(f.kind, link, peer), nil
}
