// Package sysid names the places in which processes can find each other's
// memory: the running kernel, and its namespaces. Two processes with equal names
// are in the same place. The forms are TensorPipe's, so that the descriptors
// built from them match those of C++ peers.
//
// Everything is looked up once. Where the kernel does not tell, the error
// satisfies errors.Is(err, errors.ErrUnsupported).
package sysid

import (
	"os"
	"strconv"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// Namespace is a kind of kernel namespace.
type Namespace string

// The namespaces that descriptors mention.
const (
	PID  Namespace = "pid"
	User Namespace = "user"
	Net  Namespace = "net"
)

var (
	bootID = sync.OnceValues(readBootID)

	namespaceIDs = map[Namespace]func() (string, error){
		PID:  lookup(PID),
		User: lookup(User),
		Net:  lookup(Net),
	}

	process = sync.OnceValues(nameProcess)
)

// BootID names this start of the machine.
func BootID() (string, error) { return bootID() }

// NamespaceID names the namespace of that kind which this process is in, as
// device and inode in lower-case hexadecimal: "4_effffffc".
func NamespaceID(ns Namespace) (string, error) {
	id, ok := namespaceIDs[ns]
	if !ok {
		return "", probe.NotSupported("namespace id", "%q is not one of %s, %s, %s", string(ns), PID, User, Net)
	}
	return id()
}

// Process names this process among all of the network: boot id, pid namespace
// and pid, joined by underscores.
func Process() (string, error) { return process() }

func lookup(ns Namespace) func() (string, error) {
	return sync.OnceValues(func() (string, error) { return readNamespaceID(ns) })
}

func nameProcess() (string, error) {
	boot, err := BootID()
	if err != nil {
		return "", err
	}
	ns, err := NamespaceID(PID)
	if err != nil {
		return "", err
	}
	return boot + "_" + ns + "_" + strconv.Itoa(os.Getpid()), nil
}
