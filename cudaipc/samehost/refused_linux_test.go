package samehost_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// The channel of a pair of GPUs is cuda_basic if one of them has no handles for other processes. The plans of
// both processes have the reason.
func TestRefusedIPC(t *testing.T) {
	all := []int{0, 1, 2, 3}
	for _, c := range []struct {
		name    string
		refused [2][]int // devices without handles, by process
	}{
		{"all GPUs of both", [2][]int{all, all}},
		{"all GPUs of the server", [2][]int{0: all}},
		{"all GPUs of the client", [2][]int{1: all}},
		{"one GPU of both", [2][]int{{1}, {1}}},
		{"one GPU of the server", [2][]int{0: {1}}},
		{"one GPU of the client", [2][]int{1: {1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBothForms(t, func(t *testing.T, r route) {
				r.mixed = true
				r.open = func(n *node, d driver.Driver) driver.Driver {
					return withoutHandles{d, c.refused[n.Rank]}
				}
				r.want = func(n *node, local, remote device.Device) string {
					if slices.Contains(c.refused[n.Rank], local.Index) || slices.Contains(c.refused[1-n.Rank], remote.Index) {
						return cudaipc.BasicName
					}
					return cudaipc.IPCName
				}
				r.both(t, nil, func(n *node) {
					require.Empty(n, n.active())
					require.Contains(n, n.Plan().String(), "has no handles for other processes")
					for _, d := range n.kind.Devices() {
						if slices.Contains(c.refused[n.Rank], d.Index) {
							var refused *cudaipc.HandleError
							require.ErrorAs(n, n.kind.CheckIPC(d), &refused)
							require.Equal(n, d, refused.Device)
						}
					}
					n.exchangeOnPairs()
				})
			})
		})
	}
}

// withoutHandles is a driver that reports no handles for some devices.
type withoutHandles struct {
	driver.Driver
	refused []int
}

// DeviceAttribute returns 0 for the handles of refused devices.
func (d withoutHandles) DeviceAttribute(a driver.DeviceAttribute, dev int) (int, error) {
	if a == driver.AttributeIPCEvents && slices.Contains(d.refused, dev) {
		return 0, nil
	}
	return d.Driver.DeviceAttribute(a, dev)
}

// exchangeOnPairs sends a tensor from each of the first two GPUs of the first process to each of those of the
// second one, and requires the channel of each pair.
func (n *node) exchangeOnPairs() {
	all := n.kind.Devices()
	for i, from := range all[:min(len(all), 2)] {
		for j, to := range all[:min(len(all), 2)] {
			v := byte(1 + 2*i + j)
			if n.Rank == 0 {
				n.requireChannel(from, to)
				n.write(to, n.filled(tensorSize, n.stream(from), v))
			} else {
				n.requireChannel(to, from)
				n.requireFilled(n.read(n.stream(to))[0], v)
			}
		}
	}
}

// One process has a driver that refuses handles, the other one does not.
func TestRefusedInOneProcess(t *testing.T) {
	inBothForms(t, func(t *testing.T, r route) {
		r.mixed = true
		r.open = func(n *node, d driver.Driver) driver.Driver {
			if n.Rank == 1 {
				require.NoError(n, n.control.Set("CUSIM_NO_IPC", "1"))
			}
			return d
		}
		r.want = func(*node, device.Device, device.Device) string { return cudaipc.BasicName }
		r.both(t, nil, func(n *node) {
			require.Contains(n, n.Plan().String(), "cudaipc: cuda:0 has no handles for other processes")
			n.exchangeOnPairs()
		})
	})
}

// If the driver refuses a handle when a tensor is sent, this transfer fails, and further pipes use another
// channel for the GPU, and state the reason.
func TestHandleRefusedLater(t *testing.T) {
	for refusing, call := range []string{"cuIpcGetMemHandle", "cuIpcGetEventHandle"} { // by the rank of the process
		t.Run(call, func(t *testing.T) {
			inBothForms(t, func(t *testing.T, r route) {
				r.mixed = true
				p := r.start(t, nil, func(n *node) { n.refusedLater(refusing, call) })
				require.Equal(t, "failed", p.ReadLine(0))
				p.Send(1, "failed")
				p.finish()
			})
		})
	}
}

func (n *node) refusedLater(refusing int, call string) {
	native := n.route.dialect == pipe.DialectNative // in the compatible dialect a failed transfer ends the pipe
	if n.Rank == refusing {
		require.NoError(n, n.control.Set("CUSIM_FAIL", call+":801"))
		err := n.Write(n.Context(), message(gpu(1), n.filled(tensorSize, n.stream(gpu(0)), 7)))
		var refused *cudaipc.HandleError
		require.ErrorAs(n, err, &refused)
		require.Equal(n, gpu(0), refused.Device)
		require.ErrorIs(n, err, driver.ResultNotSupported)
		require.NoError(n, n.control.Set("CUSIM_FAIL", ""))
		err = n.Write(n.Context(), &pipe.Message{Metadata: []byte("next")})
		require.Equal(n, native, err == nil, err)
	} else {
		in, err := n.Next(n.Context())
		for err == nil && len(in.Descriptor().Metadata) == 0 { // the message may have been announced
			require.Error(n, in.Read(n.Context(), pipe.Allocation{Tensors: []device.Buffer{n.alloc(tensorSize, n.stream(gpu(1)))}}))
			in, err = n.Next(n.Context())
		}
		if native && err == nil {
			err = in.Read(n.Context(), pipe.Allocation{})
		}
		require.Equal(n, native, err == nil, err)
	}
	n.route.want = func(n *node, local, remote device.Device) string {
		if n.Rank == refusing && local == gpu(0) || n.Rank != refusing && remote == gpu(0) {
			return cudaipc.BasicName
		}
		return cudaipc.IPCName
	}
	if n.Rank == 0 {
		n.Send("failed")
		n.accept()
	} else {
		require.NoError(n, n.WaitFor("failed"))
		n.dial(n.url)
	}
	require.Contains(n, n.Plan().String(), "cudaipc: cuda:0 has no handles for other processes: driver: "+call)
	n.exchangeOnPairs()
}

// GPUs that cannot access each other's memory, or that only one process sees, are connected by cuda_basic.
func TestMissingPeerAccess(t *testing.T) {
	t.Run("between two GPUs", func(t *testing.T) {
		inBothForms(t, func(t *testing.T, r route) {
			r.mixed = true
			r.want = func(_ *node, local, remote device.Device) string {
				if local == remote {
					return cudaipc.IPCName
				}
				return cudaipc.BasicName
			}
			r.both(t, map[string]string{"CUSIM_NO_P2P": "1"}, func(n *node) {
				require.ErrorContains(n, n.kind.CheckPeers(gpu(0), gpu(1)), "cannot access each other's memory")
				n.exchangeOnPairs()
			})
		})
	})
	t.Run("other GPUs", func(t *testing.T) {
		inBothForms(t, func(t *testing.T, r route) {
			r.mixed = true
			r.want = func(*node, device.Device, device.Device) string { return cudaipc.BasicName }
			r.open = func(n *node, d driver.Driver) driver.Driver { return otherGPUs{d, byte(n.Rank)} }
			r.both(t, map[string]string{"CUSIM_MIG": "1"}, func(n *node) {
				require.True(n, slices.ContainsFunc(n.Plan().Refused, func(r pipe.Refusal) bool {
					return r.Name == cudaipc.IPCName && strings.Contains(r.Reason, "does not use the peer's GPU 0")
				}), n.Plan())
				n.exchangeOnPairs()
			})
		})
	})
}

// otherGPUs is a driver whose devices are none of another process.
type otherGPUs struct {
	driver.Driver
	number byte
}

// DeviceUUID returns an id that has the number.
func (d otherGPUs) DeviceUUID(dev int) (driver.UUID, error) {
	id, err := d.Driver.DeviceUUID(dev)
	id[0] = d.number
	return id, err
}

// Processes with ids in different namespaces use cuda_basic.
func TestOtherNamespace(t *testing.T) {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	try := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	try.SysProcAttr = attr
	if err := try.Run(); err != nil {
		t.Skip("this machine lets nobody have namespaces: ", err)
	}
	for _, r := range []route{directOver, stagedOver} {
		r.mixed = true
		r.want = func(*node, device.Device, device.Device) string { return cudaipc.BasicName }
		r.attr = func(rank int) *syscall.SysProcAttr {
			if rank == 1 {
				return attr
			}
			return nil
		}
		t.Run(r.name, func(t *testing.T) {
			r.both(t, nil, func(n *node) {
				require.Equal(n, n.Rank == 1, os.Getpid() == 1)
				require.Contains(n, n.Plan().String(), "different pid namespaces")
				n.exchangeOnPairs()
			})
		})
	}
}
