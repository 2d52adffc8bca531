package main

import (
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// gpus returns the facts about the GPUs of this machine, and the channels for them. It initialises the
// contexts of all usable GPUs.
func gpus() (found, channels []finding) {
	kind, version, err := openGPUs()
	if err != nil {
		return []finding{newFinding("driver", err, "")}, nil
	}
	defer kind.Close()
	found = append(found, newFinding("driver", nil, "CUDA %d.%d", version/1000, version%1000/10))
	for _, reason := range kind.Unusable() {
		found = append(found, newFinding("device", reason, ""))
	}
	all := kind.Devices()
	for _, d := range all {
		text, err := kind.Describe(d)
		found = append(found, newFinding(d.String(), err, "%s", text))
		found = append(found, newFinding(d.String()+" IPC", kind.CheckIPC(d), "other processes can map its memory"))
	}
	for i, a := range all {
		for _, b := range all[i+1:] {
			found = append(found, newFinding(fmt.Sprintf("%v and %v", a, b), kind.CheckPeers(a, b), "each can access the memory of the other"))
		}
	}
	return found, []finding{
		newFinding(cudaipc.IPCName, cudaipc.NewIPC(kind).Viable(), "for GPUs, between processes"),
		newFinding(cudaipc.BasicName, cudaipc.NewBasic(kind, basic.New()).Viable(), "for GPUs, through host memory"),
	}
}

// openGPUs returns the device kind of the GPUs, which the caller must close, and the version of CUDA
// that the driver supports.
func openGPUs() (*cudaipc.Kind, int, error) {
	d, err := driver.Open("")
	if err != nil {
		return nil, 0, err
	}
	version, err := d.Version()
	if err != nil {
		return nil, 0, err
	}
	kind, err := cudaipc.New(d, cudaipc.Options{})
	return kind, version, err
}
