package codec

import (
	"encoding/binary"
	"time"
	"unsafe"
)

// What is known of the zone of a time.
const (
	zoneUTC    = 0
	zoneOffset = 1 // seconds east of UTC follow
)

// encodeTime writes the instant and how far its zone is from UTC, not the name
// of the zone and not the reading of the monotonic clock.
func encodeTime(e *Encoder, p unsafe.Pointer) error {
	t := *(*time.Time)(p)
	e.Int(t.Unix())
	e.Uint(uint64(t.Nanosecond()))
	if t.Location() == time.UTC {
		e.buf = append(e.buf, zoneUTC)
		return nil
	}
	_, offset := t.Zone()
	e.buf = binary.AppendVarint(append(e.buf, zoneOffset), int64(offset))
	return nil
}

func decodeTime(d *Decoder, p unsafe.Pointer) error {
	seconds, err := d.varint()
	if err != nil {
		return err
	}
	nanoseconds, err := d.uvarint()
	if err != nil {
		return err
	}
	if nanoseconds >= uint64(time.Second) {
		return corrupt("time with %d nanoseconds", nanoseconds)
	}
	t := time.Unix(seconds, int64(nanoseconds))
	zone, err := d.zone(t)
	if err != nil {
		return err
	}
	*(*time.Time)(p) = t.In(zone)
	return nil
}

// zone reads the zone of t. One with the offset of this machine is this
// machine's.
func (d *Decoder) zone(t time.Time) (*time.Location, error) {
	form, err := d.byte()
	if err != nil || form == zoneUTC {
		return time.UTC, err
	}
	offset, err := d.varint()
	if err != nil {
		return nil, err
	}
	const day = 24 * 60 * 60
	if form != zoneOffset || offset < -7*day || offset > 7*day {
		return nil, corrupt("time with the zone %d, %d", form, offset)
	}
	if _, here := t.Local().Zone(); int64(here) == offset {
		return time.Local, nil
	}
	return time.FixedZone("", int(offset)), d.spend(256)
}
