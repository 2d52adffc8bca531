package shm

import (
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/internal/sysid"
)

// viable tries what a connection needs.
var viable = probe.Once("shm", func() error {
	if _, err := domain(); err != nil {
		return err
	}
	return tryMachine()
})

// descriptor is TensorPipe's, or a text that equals no peer's where this machine
// does not say where it is.
var descriptor = sync.OnceValue(func() string {
	text, err := domain()
	if err != nil {
		return "shm:unknown"
	}
	return text
})

func domain() (string, error) {
	boot, err := sysid.BootID()
	if err != nil {
		return "", err
	}
	ns, err := sysid.NamespaceID(sysid.Net)
	if err != nil {
		return "", err
	}
	return "shm:" + boot + "_" + ns, nil
}
