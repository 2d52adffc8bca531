package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// serverProcess is the server process. It ends with its stdin, and is killed when ctx ends.
type serverProcess struct {
	address string
	folder  string // contains its socket
	cmd     *exec.Cmd
	stdin   io.Closer
}

func startServer(ctx context.Context, over string) (s *serverProcess, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s = &serverProcess{address: "127.0.0.1:0"}
	if s.folder, err = os.MkdirTemp("", "grpc"); err != nil {
		return nil, err
	}
	if over == "unix" {
		s.address = filepath.Join(s.folder, "socket")
	}
	s.cmd = exec.CommandContext(ctx, self, "-over", over, "-serve", s.address)
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.folder))
	}
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), os.RemoveAll(s.folder))
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the server printed no address: %w", err), s.end())
	}
	s.address = strings.TrimSpace(line)
	return s, nil
}

// end stops the server, waits for its exit, and removes its folder.
func (s *serverProcess) end() error {
	_ = s.stdin.Close()
	return errors.Join(s.cmd.Wait(), os.RemoveAll(s.folder))
}

// connect returns the connection for all calls. The first call opens it.
func connect(network, address string) (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return grpc.NewClient("passthrough:///server",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(maxMessage), grpc.WithInitialConnWindowSize(maxMessage),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})),
	)
}
