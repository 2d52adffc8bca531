package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// call makes one call and checks the reply. It reuses its memory and must not be called concurrently.
type call func(ctx context.Context) error

func newAdd(conn *grpc.ClientConn) call {
	shape := []int{2, 2}
	a, b := []float32{1, 2, 3, 4}, []float32{10, 20, 30, 40}
	want := appendTensor(nil, shape, []float32{11, 22, 33, 44})
	var in, out message
	return func(ctx context.Context) error {
		in.bytes = appendTensor(appendTensor(in.bytes[:0], shape, a), shape, b)
		if err := conn.Invoke(ctx, methodAdd, &in, &out); err != nil {
			return err
		}
		if !bytes.Equal(out.bytes, want) {
			return fmt.Errorf("the sum is %x", out.bytes)
		}
		return nil
	}
}

// newBytes returns a call that sends size bytes, at least one, and checks the reply. The bytes are
// the same each time, except for the last one, which counts the calls. The call reuses its memory.
func newBytes(conn *grpc.ClientConn, size int) call {
	in, out := message{make([]byte, size)}, message{}
	for i := range in.bytes {
		in.bytes[i] = byte(i)
	}
	last := &in.bytes[size-1]
	return func(ctx context.Context) error {
		*last++
		if err := conn.Invoke(ctx, methodBytes, &in, &out); err != nil {
			return err
		}
		if len(out.bytes) != 9 || binary.LittleEndian.Uint64(out.bytes) != uint64(size) || out.bytes[8] != *last {
			return fmt.Errorf("of %d bytes that end with %d, %x arrived", size, *last, out.bytes)
		}
		return nil
	}
}

// cpuOfBoth returns the sum of the CPU time of this process and of that of the server, which it
// requests over conn. The error is that of the call or of either process.
func cpuOfBoth(ctx context.Context, conn *grpc.ClientConn) (time.Duration, error) {
	var out message
	if err := conn.Invoke(ctx, methodUsage, &message{}, &out); err != nil {
		return 0, err
	}
	if len(out.bytes) != 8 {
		return 0, fmt.Errorf("a processor time of %d bytes", len(out.bytes))
	}
	own, err := cpuTime()
	return own + time.Duration(binary.LittleEndian.Uint64(out.bytes)), err
}

// The kinds of jobs.
const (
	kindAdd     = "add"
	kindBytes   = "bytes"
	kindReceive = "receive"
	kindSend    = "send"
	kindEcho    = "echo"
)

// maxDepth bounds the calls in flight.
const maxDepth = 10_000

// job is one measurement.
type job struct {
	kind  string
	param int // the depth of add, otherwise the size of the messages
	calls int
}

// what returns the name of the job in its result, such as "add@64".
func (j job) what() string { return fmt.Sprintf("%s@%d", j.kind, j.param) }

// depth returns the number of calls in flight: the parameter of an add job, and 1 for others.
func (j job) depth() int {
	if j.kind == kindAdd {
		return j.param
	}
	return 1
}

// newCall returns a call of the job. The error is that of opening the stream of an echo job.
func (j job) newCall(ctx context.Context, conn *grpc.ClientConn) (call, error) {
	switch j.kind {
	case kindAdd:
		return newAdd(conn), nil
	case kindBytes:
		return newBytes(conn, j.param), nil
	case kindReceive:
		return newReceive(conn, j.param), nil
	case kindSend:
		return newSend(conn, j.param), nil
	default:
		return newEcho(ctx, conn, j.param)
	}
}

func parseJobs(args []string) ([]job, error) {
	if len(args) == 0 {
		return nil, errors.New("no job: want for example add@1=10000")
	}
	var jobs []job
	for _, arg := range args {
		j, err := parseJob(arg)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func parseJob(arg string) (job, error) {
	kind, numbers, _ := strings.Cut(arg, "@")
	param, calls, _ := strings.Cut(numbers, "=")
	most, known := map[string]int{
		kindAdd: maxDepth, kindBytes: maxMessage, kindReceive: maxMessage, kindSend: maxMessage, kindEcho: maxMessage,
	}[kind]
	p, errParam := strconv.Atoi(param)
	n, errCalls := strconv.Atoi(calls)
	if !known || errParam != nil || errCalls != nil || p < 1 || p > most || n < 1 {
		return job{}, fmt.Errorf("job %q: want add@DEPTH=N, or bytes, receive, send or echo with @SIZE=N, DEPTH up to %d, SIZE up to %d", arg, maxDepth, maxMessage)
	}
	return job{kind, p, n}, nil
}
