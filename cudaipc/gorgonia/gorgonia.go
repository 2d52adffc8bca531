package gorgonia

/*
#cgo linux LDFLAGS: -L/usr/local/cuda/lib64/stubs
#include <cuda.h>
#cgo noescape cuDriverGetVersion
#cgo nocallback cuDriverGetVersion
*/
import "C"

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// cuda implements driver.Driver. The driver itself has one state for the whole process.
type cuda struct{}

var _ driver.Driver = cuda{}

// New returns the driver of the process. If the driver cannot be initialised, for example because
// the machine has no device, the error is a *driver.NotViableError.
func New() (driver.Driver, error) {
	if err := checkResult("cuInit", C.cuInit(0)); err != nil {
		reason := "the driver cannot be initialised"
		if errors.Is(err, driver.ResultNoDevice) {
			reason = "there is no device"
		}
		return nil, &driver.NotViableError{Reason: reason, Err: err}
	}
	return cuda{}, nil
}

// check returns an error of cu as a *driver.CallError of the function call.
func check(call string, err error) error {
	if err == nil {
		return nil
	}
	result := cu.Success // the type of cu's errors is not exported
	if !errors.As(err, &result) {
		return fmt.Errorf("gorgonia: %s: %w", call, err)
	}
	return driver.Check(call, driver.Result(result))
}

// checkResult returns a *driver.CallError of the function call if r is an error.
func checkResult(call string, r C.CUresult) error { return driver.Check(call, driver.Result(r)) }

// Version calls C, since cu.Version drops the error.
func (cuda) Version() (int, error) {
	var v C.int
	err := checkResult("cuDriverGetVersion", C.cuDriverGetVersion(&v))
	return int(v), err
}
