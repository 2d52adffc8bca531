package rref_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// finish ends the faults, releases everything, and checks that nothing is left.
func (m *machine) finish(t *rapid.T) {
	m.weather.setRate(0)
	sleep(2 * machineLease) // until delayed messages have arrived, and each worker knows of its broken pipes
	for range 60 {
		m.mu.Lock()
		n := len(m.pending)
		m.mu.Unlock()
		if n == 0 {
			break
		}
		sleep(machineLease / 4)
	}
	if len(m.pending) > 0 {
		m.fatal(t, fmt.Sprint("operations have not ended: ", m.pending))
	}
	m.check(t)
	live := m.live()
	intact := !m.static || len(live) == len(m.members)
	if !intact || rapid.Bool().Draw(t, "releases before shutdown") {
		m.releaseAll(t, live)
	}
	if intact {
		m.shutdown(t, live)
	}
}

func (m *machine) releaseAll(t *rapid.T, live []*member) {
	for _, b := range live {
		for _, c := range b.claimed() {
			b.unclaim(c)
			require.NoError(t, c.f.Release(m.ctx))
		}
		for _, to := range live {
			for i := range machineRemembered {
				_, err := forgetReply.Call(m.ctx, b.a, agent.To(to.name), i, agent.WithIdempotencyKey(fmt.Sprint("last", i)))
				require.NoError(t, err)
			}
		}
	}
	left := ""
	for range 80 {
		runtime.GC()
		sleep(machineLease / 4)
		if left = leftAt(live); left == "" {
			return
		}
	}
	m.fatal(t, "left after the release:\n"+left)
}

// leftAt returns the tables of members that are not empty.
func leftAt(live []*member) string {
	text := ""
	for _, b := range live {
		tables := b.refs.Tables()
		maps.DeleteFunc(tables, func(_ string, n int) bool { return n == 0 })
		if len(tables) > 0 {
			var dump strings.Builder
			_ = b.refs.Dump(&dump) // of a failed test
			text += fmt.Sprintf("%s: %v\n%s", b.name, tables, &dump)
		}
	}
	return text
}

func (m *machine) shutdown(t *rapid.T, live []*member) {
	ctx, cancel := context.WithTimeout(m.ctx, 40*machineLease)
	defer cancel()
	errs := make([]error, len(live))
	var wg sync.WaitGroup
	for i, b := range live {
		wg.Go(func() { errs[i] = b.a.Shutdown(ctx) })
	}
	stop := time.AfterFunc(39*machineLease, func() {
		for _, b := range live {
			var dump strings.Builder
			_ = b.a.Dump(&dump) // of a failed test
			m.log(b.name, ": ", dump.String())
		}
	})
	wg.Wait()
	stop.Stop()
	if err := errors.Join(errs...); err != nil {
		m.log(leftAt(live))
		m.fatal(t, fmt.Sprint("shutdown: ", err))
	}
	for _, b := range live {
		if metrics := b.refs.Metrics(); m.static && !maps.Equal(empty, metrics) {
			m.fatal(t, fmt.Sprint("after shutdown: ", b.name, ": ", metrics))
		}
	}
}
