package torch

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Error returns the text of err with parts in PyTorch's words: wherever it contains the text of an
// error of err's tree that PyTorch has too, PyTorch's text for that error takes its place. Causes
// that another worker sent as plain text are not replaced, except the timeout of a call. If err is
// nil, the result is "".
func Error(err error) string {
	if err == nil {
		return ""
	}
	text, _ := replaceCauses(err.Error(), 0, err)
	return remoteTimeout.ReplaceAllStringFunc(text, func(found string) string {
		limit, err := time.ParseDuration(remoteTimeout.FindStringSubmatch(found)[1])
		if err != nil {
			return found
		}
		return timeoutText(limit)
	})
}

// remoteTimeout matches the text of an agent.TimeoutError. The group operations of other workers
// send such an error as text.
var remoteTimeout = regexp.MustCompile(`no reply within the call's limit of ((?:[0-9.]+(?:h|ms|m|s|µs|ns))+)`)

// replaceCauses searches text, from byte at on, for the text of err and replaces its first
// occurrence by PyTorch's wording of err, see inWords. If the text of err does not occur there,
// replaceCauses does the same for each cause of err, one after the other. It returns the new text
// and the offset of the end of the last replacement in it. Without a replacement, and for a nil
// err, it returns text and at.
func replaceCauses(text string, at int, err error) (string, int) {
	if err == nil {
		return text, at
	}
	if plain := err.Error(); plain != "" {
		if i := strings.Index(text[at:], plain); i >= 0 {
			begin := at + i
			torch := inWords(err)
			return text[:begin] + torch + text[begin+len(plain):], begin + len(torch)
		}
	}
	for _, cause := range causes(err) {
		text, at = replaceCauses(text, at, cause)
	}
	return text, at
}

// inWords returns the text of err in PyTorch's words. If PyTorch has an error like err, that is
// PyTorch's text for err. Otherwise it is the text of err, in which PyTorch's texts replace those
// of the causes that PyTorch has. For a nil err it is "unknown error".
func inWords(err error) string {
	if text, ok := ownWords(err); ok {
		return text
	}
	if err == nil {
		return "unknown error"
	}
	text, at := err.Error(), 0
	for _, cause := range causes(err) {
		text, at = replaceCauses(text, at, cause)
	}
	return text
}

func causes(err error) []error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// ownWords returns PyTorch's text for err and true. Only err itself counts, not an error that it
// wraps. If the text includes a cause, the cause is in PyTorch's words too. If PyTorch has no such
// error, the second result is false and the text must not be used.
func ownWords(err error) (string, bool) {
	if err == agent.ErrMixed {
		return "RPC group mixes statically and dynamically initialized members which is not supported.", true
	}
	switch e := err.(type) {
	case *agent.TimeoutError:
		return timeoutText(e.Limit), true
	case *agent.RetryError:
		return fmt.Sprintf("The RPC has not succeeded after the specified number of max retries (%d).: %s", e.Max, inWords(e.Err)), true
	case *agent.MissingError:
		return fmt.Sprintf("followers %v timed out in _all_gather after %.2f seconds: %s", e.Workers, e.Waited.Seconds(), inWords(e.Err)), true
	case *agent.UnknownWorkerError:
		if e.ByRank {
			return fmt.Sprintf("%v: %s could not find destination id %d", agent.ErrNoWorker, WorkerInfo(e.Self), e.Rank), true
		}
		return fmt.Sprintf("%v: %s could not find destination name %s", agent.ErrNoWorker, WorkerInfo(e.Self), e.Name), true
	case *agent.ConfigError:
		return configText(e)
	case *agent.DeviceMapError:
		switch {
		case e.First.IsZero() && e.Second.IsZero():
			return "Device index must not be negative", e.Device.Index < 0
		case e.Target:
			return fmt.Sprintf("`device_map` only supports 1-to-1 mapping, trying to map %v and %v to %v", e.First, e.Second, e.Device), true
		}
		return fmt.Sprintf("`set_device_map` only supports 1-to-1 mapping, trying to map %v to %v and %v", e.Device, e.First, e.Second), true
	case *agent.DeviceError:
		return deviceText(e), true
	case *future.DeviceError:
		return fmt.Sprintf("The result contained tensors residing on device(s) %s which are not among the expected device(s) %s", listed(e.Found), listed(e.Expected)), true
	case *future.CPUError:
		return fmt.Sprintf("Expected devices to have indices, got %s", e.Device.Kind), true
	case referenceError:
		return referenceText(e)
	case *faulty.InjectedError:
		if e.Err == nil {
			return fmt.Sprintf("RPCErr:2:Send attempt failed intentionally for %s to %s", e.Message, e.Worker), true
		}
	case *roster.NameError:
		return fmt.Sprintf("Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, but got %.200q", e.Name), true
	case *roster.RankError:
		return fmt.Sprintf("RPC worker id %d out of bound of int16_t.", e.Rank), true
	case *roster.DuplicateNameError:
		return fmt.Sprintf("RPC worker name %s is not unique. Workers %d and %d share the same name.", e.Name, e.Rank, e.Other), true
	case *roster.NotLeftError:
		return fmt.Sprintf("RPC worker name %s is not unique. Another incarnation has it, with rank %d, and has not left: if it has died, remove or replace it", e.Name, e.Rank), true
	case *roster.DuplicateRankError:
		return fmt.Sprintf("RPC worker id %d is not unique. Worker %s and already has ID and %s cannot be added.", e.Rank, e.Holder, e.Other), true
	}
	return "", false
}

// deviceText returns PyTorch's text for e. As there, the beginning is repeated if there is a map.
func deviceText(e *agent.DeviceError) string {
	const begin = "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before sending them over RPC, " +
		"or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure device mapping. "
	direction := "Request"
	if e.Reply {
		direction = "Response"
	}
	missing := begin + direction + " device mapping is not available for destination "
	if e.NoMap {
		return fmt.Sprintf("%s%s, but found tensor on device: %v", missing, e.Worker, e.Device)
	}
	return fmt.Sprintf("%s%s%s for device %v but received a tensor on that device.", missing, missing, e.Worker, e.Device)
}

// listed returns the devices, separated by commas.
func listed(devices []device.Device) string {
	var texts []string
	for _, d := range devices {
		texts = append(texts, d.String())
	}
	return strings.Join(texts, ", ")
}

func timeoutText(limit time.Duration) string {
	return fmt.Sprintf("RPC ran for more than set timeout (%d ms) and will now be marked with an error", limit.Milliseconds())
}

func configText(e *agent.ConfigError) (string, bool) {
	text := map[string]string{
		"Timeout":       fmt.Sprintf("RPC Timeout must be non-negative, got %v", e.Value),
		"Retry.Max":     "maxRetries cannot be negative",
		"Retry.Delay":   "rpcRetryDuration cannot be negative",
		"Retry.Backoff": "maxRetries cannot be exponentially decaying",
	}[e.Field]
	return fmt.Sprintf("%v: %s", agent.ErrConfig, text), text != ""
}
