package rpcpeer

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// GRPC builds the program on grpc-go into folder, which must stay as long as the Peer is used, and
// returns the Peer. The Peer supports TCP and Unix. The error matches [errors.ErrUnsupported] if
// the sources or the modules that they need are not available. It is a *ProcessError if the build
// fails, and the cause of ctx if ctx ends during the checks.
func GRPC(ctx context.Context, folder string) (*Peer, error) {
	const name = "grpc-go"
	sources, err := sourcesOf(ctx, name, "grpc")
	if err != nil {
		return nil, err
	}
	if text, err := goCommand(ctx, sources, "mod", "download"); err != nil {
		return nil, missing(ctx, name, text, err)
	}
	program := filepath.Join(folder, "grpcpeer")
	if text, err := goCommand(ctx, sources, "build", "-o", program, "."); err != nil {
		return nil, &ProcessError{Name: "go build of " + name, Stderr: text, Err: err}
	}
	return &Peer{name, []string{program}, []string{TCP, Unix}}, nil
}

// python is the interpreter for which Debian installs PyTorch.
const python = "/usr/bin/python3"

// Torch returns the Peer of PyTorch, installed as Debian's python3-torch. It supports Default and
// TCP. The error matches [errors.ErrUnsupported] if PyTorch or the sources of the program are not
// available, or is the cause of ctx.
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

const module = "github.com/tensorpipe-go/tensorpipe"

// sourcesOf returns the path of folder within bench/peers, which exists only in a clone of the
// repository: nested modules are not part of a module download. If it does not exist, the error is
// a *MissingError with the name of the peer. If ctx ends, the error is the cause of ctx.
func sourcesOf(ctx context.Context, peer, folder string) (string, error) {
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", missing(ctx, peer, root, err)
	}
	path := filepath.Join(root, "bench", "peers", folder)
	if _, err := os.Stat(path); err != nil {
		return "", missing(ctx, peer, "", err)
	}
	return path, nil
}

// goCommand runs the go command with args in folder; "" is the current one. It returns the standard
// output without surrounding white space. If the command fails, it returns the standard error
// output instead, and the error.
func goCommand(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return strings.TrimSpace(stderr.String()), err
	}
	return strings.TrimSpace(stdout.String()), nil
}

// missing returns a *MissingError for the peer with that name. Its reason is the last line of text
// or, if text is empty, the text of err. If ctx has ended it returns the cause of ctx instead.
func missing(ctx context.Context, peer, text string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if text == "" {
		text = err.Error()
	}
	return &MissingError{peer, text}
}
