package drivertest

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
)

var handleCases = []testCase{
	{"SameProcess", 1, handlesInSameProcess},
	{"Errors", 1, handleErrors},
}

const sharedEvent = driver.EventDisableTiming | driver.EventInterprocess

// handlesInSameProcess checks that handles are for other processes: their own process cannot
// open them.
func handlesInSameProcess(f *fixture) {
	p := f.alloc(0, 4096)
	e := f.lostEvent(0, sharedEvent)
	f.on(0, func() {
		mem, err := f.MemHandle(p)
		require.NoError(f, err)
		_, err = f.OpenMem(&mem)
		f.wantError(err)
		ev, err := f.EventHandle(e)
		require.NoError(f, err)
		_, err = f.OpenEvent(&ev)
		f.wantError(err)
		require.NoError(f, f.DestroyEvent(e))
	})
}

func handleErrors(f *fixture) {
	p, e, h := f.alloc(0, 4096), f.event(0), f.host(4096)
	var garbage driver.IPCHandle
	for i := range garbage {
		garbage[i] = byte(i)
	}
	f.on(0, func() {
		for _, bad := range []driver.IPCHandle{{}, garbage} {
			_, err := f.OpenMem(&bad)
			f.wantError(err)
			_, err = f.OpenEvent(&bad)
			f.wantError(err)
		}
		_, err := f.MemHandle(driver.HostPtr(h))
		f.wantError(err)
		_, err = f.MemHandle(0)
		f.wantError(err)
		_, err = f.EventHandle(e) // without EventInterprocess
		f.wantError(err)
		_, err = f.EventHandle(0)
		f.wantError(err)
		f.wantError(f.CloseMem(p))
		f.wantError(f.CloseMem(0))
	})
}

// process is the tester of a child process. A failure panics, which procgroup reports.
type process struct {
	*procgroup.Member
	cleanups []func()
}

func (*process) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*process) FailNow()                          { panic("failed") }
func (*process) Helper()                           {}
func (p *process) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }

// run calls f and then the cleanups, the last one first.
func (p *process) run(f func(p *process) error) error {
	err := f(p)
	for _, c := range slices.Backward(p.cleanups) {
		c()
	}
	return err
}

// transfer is the message of the producer to the consumer.
type transfer struct {
	Device driver.UUID
	Offset int
	Memory string // handles, in hexadecimal
	Event  string
}

const (
	before, sent, overwritten = 1, 2, 3 // the words in the shared memory
	offset                    = 4096
)

// betweenProcesses checks that two processes share memory, and order their work on it with
// events. The producer fills it late; the consumer waits for the producer's event, copies late,
// and records its own event, for which the producer waits before it overwrites the memory.
func betweenProcesses(t *testing.T, d driver.Driver) {
	group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
		return (&process{Member: m}).run(func(p *process) error {
			f := newFixture(p, d)
			if m.Rank == 0 {
				return produce(f, m)
			}
			return consume(f, m)
		})
	})
	group.Send(1, group.ReadLine(0)) // the transfer
	group.Send(0, group.ReadLine(1)) // the consumer's event
	group.Send(0, group.ReadLine(1)) // the consumer has closed the memory
	group.Send(1, group.ReadLine(0)) // the producer has waited for the consumer's event
	group.Wait()
}

func produce(f *fixture, m *procgroup.Member) error {
	s, base := f.stream(0), f.alloc(0, offset+4*words)
	p, filled := base+offset, f.lostEvent(0, sharedEvent)
	f.fill(0, p, before, words, s)
	f.sync(0, s)
	f.sleep(0, 10*late, s)
	f.fill(0, p, sent, words, s)
	f.record(0, filled, s)
	line, err := json.Marshal(f.describe(p, filled))
	require.NoError(f, err)
	m.Send(string(line))

	answer, err := m.ReadLine()
	require.NoError(f, err)
	handle := parseHandle(f, answer)
	f.on(0, func() {
		copied, err := f.OpenEvent(&handle)
		require.NoError(f, err)
		require.NoError(f, f.Wait(s, copied))
		require.NoError(f, f.Fill(p, overwritten, words, s))
		require.NoError(f, f.DestroyEvent(copied))
	})
	f.wantWords(0, p, overwritten, words, s)
	m.Send("overwritten")
	_, err = m.ReadLine() // the consumer has closed the memory, and waits for the event no more
	f.on(0, func() { require.NoError(f, f.DestroyEvent(filled)) })
	return err
}

// describe returns the transfer of the memory at p, valid when filled is done.
func (f *fixture) describe(p driver.Ptr, filled driver.Event) transfer {
	id, err := f.DeviceUUID(0)
	require.NoError(f, err)
	out := transfer{Device: id}
	f.on(0, func() {
		base, _, err := f.AddressRange(p)
		require.NoError(f, err)
		memory, err := f.MemHandle(base)
		require.NoError(f, err)
		event, err := f.EventHandle(filled)
		require.NoError(f, err)
		out.Offset, out.Memory, out.Event = int(p-base), hex.EncodeToString(memory[:]), hex.EncodeToString(event[:])
	})
	return out
}

func parseHandle(f *fixture, s string) (h driver.IPCHandle) {
	b, err := hex.DecodeString(s)
	require.NoError(f, err)
	require.Equal(f, len(h), copy(h[:], b))
	return h
}

func consume(f *fixture, m *procgroup.Member) error {
	line, err := m.ReadLine()
	require.NoError(f, err)
	var t transfer
	require.NoError(f, json.Unmarshal([]byte(line), &t))
	dev, err := f.deviceWith(t.Device)
	require.NoError(f, err)
	memory, event := parseHandle(f, t.Memory), parseHandle(f, t.Event)
	s, mine, copied := f.stream(dev), f.alloc(dev, 4*words), f.lostEvent(dev, sharedEvent)
	f.on(dev, func() {
		filled, err := f.OpenEvent(&event)
		require.NoError(f, err)
		base, err := f.OpenMem(&memory)
		require.NoError(f, err)
		require.NoError(f, f.Wait(s, filled))
		f.sleep(dev, 10*late, s)
		require.NoError(f, f.Copy(mine, base+driver.Ptr(t.Offset), 4*words, s))
		require.NoError(f, f.Record(copied, s))
		handle, err := f.EventHandle(copied)
		require.NoError(f, err)
		m.Send(hex.EncodeToString(handle[:]))
		f.wantWords(dev, mine, sent, words, s)
		require.NoError(f, f.CloseMem(base))
		require.NoError(f, f.DestroyEvent(filled))
	})
	m.Send("closed")
	_, err = m.ReadLine() // the producer waits for the event no more
	f.on(dev, func() { require.NoError(f, f.DestroyEvent(copied)) })
	return err
}

func (f *fixture) deviceWith(id driver.UUID) (int, error) {
	for dev := range f.contexts {
		got, err := f.DeviceUUID(dev)
		if err != nil || got == id {
			return dev, err
		}
	}
	return 0, errors.New("the producer's device is none of this process")
}
