// Package sysid identifies the running kernel and the namespaces of this process. Processes with
// equal identifiers can find each other's memory. The identifiers have TensorPipe's form, so that
// descriptors built from them match those of C++ peers.
//
// Everything is looked up once. If the kernel does not provide an identifier, the error satisfies
// errors.Is(err, errors.ErrUnsupported).
package sysid

import (
	"os"
	"strconv"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
)

// Namespace is a kind of kernel namespace, by its name in /proc/self/ns.
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

// BootID returns the identifier of the current boot of the machine. The error matches
// errors.ErrUnsupported if the kernel provides none.
func BootID() (string, error) { return bootID() }

// NamespaceID returns the identifier of this process's namespace of the kind ns: its device and
// inode in lower-case hexadecimal, as in "4_effffffc". The error matches errors.ErrUnsupported if
// the kernel provides none, or if ns is no constant of this package.
func NamespaceID(ns Namespace) (string, error) {
	id, ok := namespaceIDs[ns]
	if !ok {
		return "", probe.NotSupported("namespace id", "%q is not one of %s, %s, %s", string(ns), PID, User, Net)
	}
	return id()
}

// Process returns an identifier of this process that no other running process of the network has:
// boot id, pid namespace and pid, joined by underscores. The error is that of BootID or
// NamespaceID.
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
