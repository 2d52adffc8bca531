package agent

import "github.com/tensorpipe-go/tensorpipe/device"

// route is where the tensors on a device of one worker go on another one. The ends of a
// pipe tell each other theirs, for the answers.
type route struct{ From, To device.Device }

// routes are what the device map of this worker says about another one.
func (d *devices) routes(worker string) []route {
	if d.place == nil {
		return nil
	}
	var all []route
	for _, k := range d.kinds {
		if k.Viable() != nil {
			continue
		}
		for _, from := range k.Devices() {
			if to, ok := d.place(worker, from); ok {
				all = append(all, route{from, to})
			}
		}
	}
	return all
}

// terms are what the other end of a pipe has said when it was opened.
type terms struct {
	room   int     // there, for calls of this end
	routes []route // of tensors there to this end
}

// ways are where tensors go, by the device that they are on.
type ways map[device.Device]device.Device

// wayBack is the one that answers take: the inverse of the other end's map, without the
// devices to which that sends tensors from several.
func wayBack(routes []route) ways {
	back := ways{}
	var unclear []device.Device
	for _, r := range routes {
		if _, twice := back[r.To]; twice {
			unclear = append(unclear, r.To)
		}
		back[r.To] = r.From
	}
	for _, d := range unclear {
		delete(back, d)
	}
	return back
}
