package mpt

import (
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/framed"
	"github.com/tensorpipe-go/tensorpipe/internal/transfer"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// compatLane is a lane of the compatible dialect, also before it is open. Its life
// ends before that of the channel where the peer ends it between two frames: what
// the other lanes carry still comes.
type compatLane struct {
	*framed.Line
	life *transfer.Life

	mu   sync.Mutex
	conn transport.Conn // nil until it is open
}

// newCompatLane returns a lane that tells e of its end.
func newCompatLane(e *compatEnd, arrived func(bytes int)) *compatLane {
	l := &compatLane{}
	l.life = transfer.NewLife(l.release, e.laneEnded)
	l.Line = framed.New(l.life, e.explain, arrived)
	return l
}

// adopt puts the lane's connection under its care, or closes it if the end has come.
func (l *compatLane) adopt(conn transport.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.life.Err(); err != nil {
		_ = conn.Close()
		return err
	}
	l.conn = conn
	return nil
}

func (l *compatLane) release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil
	}
	return l.conn.Close()
}

// drop finishes a lane that will not run.
func (l *compatLane) drop(cause error) {
	l.life.Fail(cause)
	l.Drain()
}
