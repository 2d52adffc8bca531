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

	"github.com/tensorpipe-go/tensorpipe"
)

// addresses are the kinds of connection, with the address at which the server listens; that of a Unix
// socket is chosen later. The urls of a Conn are separated by commas.
var addresses = map[string]string{
	"tcp": "127.0.0.1:0", "unix": "", "conn-tcp": "uv://127.0.0.1:0", "conn-shm": "uv://127.0.0.1:0,shm://",
}

// listen opens a listener at address, for the kind of connection over, which is a key of addresses.
// The error is that of tensorpipe.ListenConn or of net.Listen.
func listen(over, address string) (net.Listener, error) {
	if strings.HasPrefix(over, "conn-") {
		return tensorpipe.ListenConn(context.Background(), strings.Split(address, ",")...)
	}
	return net.Listen(over, address)
}

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
	s = &serverProcess{address: addresses[over]}
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

// end closes the stdin of the server, which stops it, waits for its exit, and removes its folder.
// It returns the errors of the last two joined. It must be called once.
func (s *serverProcess) end() error {
	_ = s.stdin.Close()
	return errors.Join(s.cmd.Wait(), os.RemoveAll(s.folder))
}

// connect returns a client of the server at address for all calls. over is the kind of connection, a
// key of addresses. connect does not dial: the first call opens the connection. The caller closes the
// client. The error is that of grpc.NewClient.
func connect(over, address string) (*grpc.ClientConn, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if strings.HasPrefix(over, "conn-") {
			return tensorpipe.DialConn(ctx, address)
		}
		return new(net.Dialer).DialContext(ctx, over, address)
	}
	return grpc.NewClient("passthrough:///server",
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(maxMessage), grpc.WithInitialConnWindowSize(maxMessage),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})),
	)
}
