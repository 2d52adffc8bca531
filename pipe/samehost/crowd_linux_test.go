package samehost_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

// crowdPart begins the part of a child that is one of many.
const crowdPart = "crowd"

// Every process of a crowd has a pipe over shared memory to every other one, all at
// the same time, and each pipe has carried a tensor both ways before the first is
// closed.
func TestCrowdFullyConnected(t *testing.T) {
	kids := make([]*child, crowdSize)
	urls := make([]string, crowdSize)
	for i := range kids {
		kids[i] = member(t, i)
	}
	for i, kid := range kids {
		urls[i] = kid.line()
	}
	tell := func(text func(i int) string) {
		for i, kid := range kids {
			_, err := fmt.Fprintln(kid.in, text(i))
			require.NoError(t, err)
		}
	}
	tell(func(i int) string { return strings.Join(urls[:i], " ") })
	for _, kid := range kids {
		require.Equal(t, "connected", kid.line())
	}
	tell(func(int) string { return "close" })
	for _, kid := range kids {
		require.NoError(t, kid.cmd.Wait())
	}
}

// member starts the process with that number.
func member(t *testing.T, number int) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", partVar, crowdPart, number), prompt)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{t, cmd, in, bufio.NewReader(out)}
}

// playCrowd is the life of one of many: it listens, says where, reads whom to dial,
// and accepts the others.
func playCrowd(part string) error {
	number, err := strconv.Atoi(part)
	if err != nil {
		return err
	}
	c, err := everything("member "+part, pipe.DialectNative, shm.Name, cma.New(cma.Options{}))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	l, err := c.Listen(ctx, "shm://")
	if err != nil {
		return err
	}
	fmt.Println(l.URLs()[0])
	said := bufio.NewScanner(os.Stdin)
	if !said.Scan() {
		return said.Err()
	}
	if err := meetAll(ctx, c, l, number, strings.Fields(said.Text())); err != nil {
		return err
	}
	fmt.Println("connected")
	said.Scan() // the pipes stay until all are there
	return c.Close()
}

// meetAll opens a pipe to each of the others and greets it, and sees that they are
// all there.
func meetAll(ctx context.Context, c *pipe.Context, l *pipe.Listener, number int, lower []string) error {
	errs := make([]error, crowdSize)
	var met sync.Map
	var greeting sync.WaitGroup
	for i := range crowdSize - 1 {
		greeting.Go(func() {
			var p *pipe.Pipe
			var err error
			if i < len(lower) {
				p, err = c.Dial(ctx, lower[i])
			} else {
				p, err = l.Accept(ctx)
			}
			var name string
			if err == nil {
				name, err = greet(ctx, p, number)
			}
			if _, before := met.LoadOrStore(name, true); before && err == nil {
				err = fmt.Errorf("member %s is there twice", name)
			}
			errs[i] = err
		})
	}
	greeting.Wait()
	return errors.Join(errs...)
}

// greet sends this process's number, and as large a tensor as it takes for a channel
// to carry it, and returns the peer's.
func greet(ctx context.Context, p *pipe.Pipe, number int) (name string, err error) {
	if got := p.Plan().Transport; got != shm.Name {
		return "", fmt.Errorf("the transport is %s", got)
	}
	word := fmt.Appendf(nil, "%4d", number)
	tensor := bytes.Repeat(word, 25_000)
	op := p.WriteAsync(ctx, &pipe.Message{Metadata: word, Tensors: []pipe.Tensor{{Buffer: device.Bytes(tensor)}}})
	in, err := p.Next(ctx)
	if err != nil {
		return "", err
	}
	a := pipe.NewAllocation(in.Descriptor())
	if err := in.Read(ctx, a); err != nil {
		return "", err
	}
	got, _ := a.Tensors[0].Contiguous()
	if theirs := in.Descriptor().Metadata; !bytes.Equal(got, bytes.Repeat(theirs, 25_000)) {
		return "", fmt.Errorf("the tensor of member %s is not what it sent", theirs)
	}
	return string(in.Descriptor().Metadata), op.Wait(ctx)
}
