package gorgonia

// #include <cuda.h>
import "C"

import (
	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

func (cuda) NewStream() (driver.Stream, error) {
	s, err := cu.MakeStream(cu.NonBlocking)
	return Stream(s), check("cuStreamCreate", err)
}

func (cuda) DestroyStream(s driver.Stream) error {
	stream := CUStream(s)
	return check("cuStreamDestroy", stream.Destroy())
}

// StreamDone calls C, for the reason of EventDone.
func (cuda) StreamDone(s driver.Stream) (bool, error) {
	return done("cuStreamQuery", C.cuStreamQuery(handle[C.CUstream](s)))
}

func (cuda) SyncStream(s driver.Stream) error {
	return check("cuStreamSynchronize", CUStream(s).Synchronize())
}

func (cuda) NewEvent(flags driver.EventFlags) (driver.Event, error) {
	e, err := cu.MakeEvent(cu.EventFlags(flags))
	return Event(e), check("cuEventCreate", err)
}

func (cuda) DestroyEvent(e driver.Event) error {
	event := CUEvent(e)
	return check("cuEventDestroy", cu.DestroyEvent(&event))
}

func (cuda) Record(e driver.Event, s driver.Stream) error {
	return check("cuEventRecord", CUEvent(e).Record(CUStream(s)))
}

func (cuda) Wait(s driver.Stream, e driver.Event) error {
	return check("cuStreamWaitEvent", CUStream(s).Wait(CUEvent(e), 0))
}

// EventDone calls C, since cu.Event.Query allocates an error for each event that is not done.
func (cuda) EventDone(e driver.Event) (bool, error) {
	return done("cuEventQuery", C.cuEventQuery(handle[C.CUevent](e)))
}

func (cuda) SyncEvent(e driver.Event) error {
	return check("cuEventSynchronize", CUEvent(e).Synchronize())
}

// done returns whether r, the result of a query, is success. It returns an error if r is one.
func done(call string, r C.CUresult) (bool, error) {
	if r == C.CUDA_ERROR_NOT_READY {
		return false, nil
	}
	return r == C.CUDA_SUCCESS, checkResult(call, r)
}
