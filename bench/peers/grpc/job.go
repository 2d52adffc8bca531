package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The kinds of jobs.
const (
	kindAdd   = "add"
	kindBytes = "bytes"
)

// mostDepth bounds how many calls may be in flight.
const mostDepth = 10_000

// job is one measurement.
type job struct {
	kind  string
	param int // of add the depth, of bytes the size
	calls int
}

// what is the job without the number of calls.
func (j job) what() string { return fmt.Sprintf("%s@%d", j.kind, j.param) }

// depth is how many calls are in flight.
func (j job) depth() int {
	if j.kind == kindAdd {
		return j.param
	}
	return 1
}

func parseJobs(args []string) ([]job, error) {
	if len(args) == 0 {
		return nil, errors.New("no job, as add@1=10000")
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
	most, known := map[string]int{kindAdd: mostDepth, kindBytes: longest}[kind]
	p, errParam := strconv.Atoi(param)
	n, errCalls := strconv.Atoi(calls)
	if !known || errParam != nil || errCalls != nil || p < 1 || p > most || n < 1 {
		return job{}, fmt.Errorf("job %q: it is add@DEPTH=N or bytes@SIZE=N, DEPTH up to %d, SIZE up to %d", arg, mostDepth, longest)
	}
	return job{kind, p, n}, nil
}
