package rpcpeer

import (
	"context"
	"os/exec"
	"path/filepath"
)

// python is where Debian has its PyTorch.
const python = "/usr/bin/python3"

// Torch finds PyTorch, as Debian's python3-torch, and takes Default and TCP. The
// error matches [errors.ErrUnsupported] where that is not installed, or the sources
// cannot be had.
func Torch(ctx context.Context) (*Peer, error) {
	const name = "torch.distributed.rpc"
	sources, err := sourcesOf(ctx, name, "torchrpc")
	if err != nil {
		return nil, err
	}
	probe := exec.CommandContext(ctx, python, "-c", "import torch.distributed.rpc")
	if text, err := probe.CombinedOutput(); err != nil {
		return nil, missing(ctx, name, string(text), err)
	}
	return &Peer{name, []string{python, filepath.Join(sources, "peer.py")}, []string{Default, TCP}}, nil
}
