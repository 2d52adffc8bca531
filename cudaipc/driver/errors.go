package driver

import (
	"errors"
	"fmt"
)

// Result is an error number of the driver.
type Result int32

// Results that callers distinguish.
const (
	ResultInvalidValue          Result = 1
	ResultOutOfMemory           Result = 2
	ResultNotInitialized        Result = 3
	ResultNoDevice              Result = 100
	ResultInvalidDevice         Result = 101
	ResultInvalidContext        Result = 201
	ResultMapFailed             Result = 205
	ResultPeerAccessUnsupported Result = 217
	ResultInvalidHandle         Result = 400
	ResultNotFound              Result = 500
	ResultNotReady              Result = 600
	ResultIllegalAddress        Result = 700
	ResultPeerAccessEnabled     Result = 704
	ResultNotPermitted          Result = 800
	ResultNotSupported          Result = 801
)

var resultNames = map[Result]string{
	ResultInvalidValue:          "CUDA_ERROR_INVALID_VALUE",
	ResultOutOfMemory:           "CUDA_ERROR_OUT_OF_MEMORY",
	ResultNotInitialized:        "CUDA_ERROR_NOT_INITIALIZED",
	4:                           "CUDA_ERROR_DEINITIALIZED",
	34:                          "CUDA_ERROR_STUB_LIBRARY",
	46:                          "CUDA_ERROR_DEVICE_UNAVAILABLE",
	ResultNoDevice:              "CUDA_ERROR_NO_DEVICE",
	ResultInvalidDevice:         "CUDA_ERROR_INVALID_DEVICE",
	200:                         "CUDA_ERROR_INVALID_IMAGE",
	ResultInvalidContext:        "CUDA_ERROR_INVALID_CONTEXT",
	ResultMapFailed:             "CUDA_ERROR_MAP_FAILED",
	209:                         "CUDA_ERROR_NO_BINARY_FOR_GPU",
	ResultPeerAccessUnsupported: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
	218:                         "CUDA_ERROR_INVALID_PTX",
	304:                         "CUDA_ERROR_OPERATING_SYSTEM",
	ResultInvalidHandle:         "CUDA_ERROR_INVALID_HANDLE",
	ResultNotFound:              "CUDA_ERROR_NOT_FOUND",
	ResultNotReady:              "CUDA_ERROR_NOT_READY",
	ResultIllegalAddress:        "CUDA_ERROR_ILLEGAL_ADDRESS",
	ResultPeerAccessEnabled:     "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
	712:                         "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	713:                         "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	719:                         "CUDA_ERROR_LAUNCH_FAILED",
	ResultNotPermitted:          "CUDA_ERROR_NOT_PERMITTED",
	ResultNotSupported:          "CUDA_ERROR_NOT_SUPPORTED",
	803:                         "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	999:                         "CUDA_ERROR_UNKNOWN",
}

// Error returns the driver's name of r, such as "CUDA_ERROR_OUT_OF_MEMORY", or its number.
func (r Result) Error() string {
	if name, ok := resultNames[r]; ok {
		return name
	}
	return fmt.Sprintf("CUDA error %d", int32(r))
}

// CallError reports that a function of the driver has failed. It wraps its Result.
type CallError struct {
	Call   string // the function, such as "cuMemAlloc"
	Result Result
}

func (e *CallError) Error() string { return fmt.Sprintf("driver: %s: %v", e.Call, e.Result) }

func (e *CallError) Unwrap() error { return e.Result }

// Check returns nil if r is 0, and otherwise a [*CallError]. It is for implementations of [Driver].
func Check(call string, r Result) error {
	if r == 0 {
		return nil
	}
	return &CallError{Call: call, Result: r}
}

// NotViableError reports why CUDA cannot be used here. It matches [errors.ErrUnsupported].
type NotViableError struct {
	Reason string
	Err    error // the cause, or nil
}

func (e *NotViableError) Error() string {
	if e.Err == nil {
		return "driver: CUDA is not viable: " + e.Reason
	}
	return fmt.Sprintf("driver: CUDA is not viable: %s: %v", e.Reason, e.Err)
}

// Unwrap returns [errors.ErrUnsupported] and the cause.
func (e *NotViableError) Unwrap() []error {
	if e.Err == nil {
		return []error{errors.ErrUnsupported}
	}
	return []error{errors.ErrUnsupported, e.Err}
}
