package roster

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Every value on the store begins with the version of this format and the kind of the value.
// Numbers are varints; a text is its length and its bytes.
const formatVersion = 1

const (
	kindState = 'g'
	kindEntry = 'm' // one member
	kindList  = 'l'
	kindClaim = 'n' // of a name
)

// maxNumber bounds sequence numbers, so that incrementing one cannot overflow.
const maxNumber = math.MaxInt64

// begin returns the beginning of a value of that kind.
func begin(kind byte) []byte { return []byte{formatVersion, kind} }

// appendText appends a text to dst and returns the extended slice.
func appendText[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// decoder reads the fields of a value from the store. After the first error, which end returns,
// it reads zero values. Slices that it returns are part of the value.
type decoder struct {
	data []byte
	err  error
}

// decode returns a decoder of the fields of value, which must have that kind. It keeps value.
func decode(value []byte, kind byte) *decoder {
	d := &decoder{data: value}
	if v := d.byte(); d.err == nil && v != formatVersion {
		d.err = fmt.Errorf("%w: format %d on the store, and only %d is known here", ErrVersion, v, formatVersion)
	}
	if k := d.byte(); k != kind {
		d.fail("%q instead of %q", k, kind)
	}
	return d
}

// fail records an error that matches ErrCorrupt, unless there is one already.
func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err, d.data = corrupt(format, args...), nil
	}
}

// take reads n bytes, or returns nil after an error. The result is part of the value.
func (d *decoder) take(n int) []byte {
	if d.err == nil && n > len(d.data) {
		d.fail("%d bytes where %d are left", n, len(d.data))
	}
	if d.err != nil {
		return nil
	}
	taken := d.data[:n]
	d.data = d.data[n:]
	return taken
}

// byte reads one byte, 0 after an error.
func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// number reads a number. One that is larger than limit is an error, for which it returns 0.
func (d *decoder) number(limit uint64) uint64 {
	if d.err != nil {
		return 0
	}
	n, size := binary.Uvarint(d.data)
	if size <= 0 || n > limit {
		d.fail("no number of at most %d", limit)
		return 0
	}
	d.data = d.data[size:]
	return n
}

// bytes reads a text of at most limit bytes. The result is part of the value.
func (d *decoder) bytes(limit int) []byte { return d.take(int(d.number(uint64(limit)))) }

// text reads a text of at most limit bytes.
func (d *decoder) text(limit int) string { return string(d.bytes(limit)) }

// incarnation reads an Incarnation.
func (d *decoder) incarnation() (i Incarnation) {
	copy(i[:], d.take(len(i)))
	return i
}

// end returns the first error of the decoder, which matches ErrCorrupt or ErrVersion. Bytes that
// were not read are an error too.
func (d *decoder) end() error {
	if len(d.data) > 0 {
		d.fail("%d bytes too many", len(d.data))
	}
	return d.err
}

// minMemberBytes is the least number of bytes that an encoded member takes.
const minMemberBytes = 24

// append appends the encoding of m to dst and returns the extended slice.
func (m Member) append(dst []byte) []byte {
	dst = appendText(dst, m.Name)
	dst = binary.AppendUvarint(dst, uint64(m.Rank))
	dst = append(dst, m.Incarnation[:]...)
	dst = binary.AppendUvarint(dst, uint64(m.MinVersion))
	dst = binary.AppendUvarint(dst, uint64(m.MaxVersion))
	static := byte(0)
	if m.Static {
		static = 1
	}
	dst = append(dst, static)
	dst = appendText(dst, m.Extra)
	dst = binary.AppendUvarint(dst, uint64(len(m.URLs)))
	for _, url := range m.URLs {
		dst = appendText(dst, url)
	}
	return dst
}

// member reads a member. It is an error if the member is not valid, or if its field Static is not
// static.
func (d *decoder) member(static bool) Member {
	m := Member{
		Name:        d.text(maxName),
		Rank:        int(d.number(maxRank)),
		Incarnation: d.incarnation(),
		MinVersion:  uint32(d.number(math.MaxUint32)),
		MaxVersion:  uint32(d.number(math.MaxUint32)),
	}
	flag := d.byte()
	m.Static = flag == 1
	if flag > 1 || m.Static != static {
		d.fail("worker %.130q is static or dynamic, unlike its group", m.Name)
	}
	if extra := d.bytes(maxExtra); len(extra) > 0 {
		m.Extra = append([]byte(nil), extra...)
	}
	for range d.number(maxURLs) {
		m.URLs = append(m.URLs, d.text(maxURL))
	}
	if d.err == nil {
		if err := m.check(); err != nil {
			d.fail("%v", err)
		}
	}
	return m
}

// appendMembers appends the encoding of a list of members to dst and returns the extended slice.
func appendMembers(dst []byte, members []Member) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(members)))
	for _, m := range members {
		dst = m.append(dst)
	}
	return dst
}

// members reads a list of members, nil if it is empty or invalid. It is an error if the list is
// not ordered by rank, has a name twice, or has a member whose field Static is not static.
func (d *decoder) members(static bool) []Member {
	n := int(d.number(maxWorld))
	if n > len(d.data)/minMemberBytes {
		d.fail("%d members in %d bytes", n, len(d.data))
	}
	if d.err != nil || n == 0 {
		return nil
	}
	members := make([]Member, 0, n)
	names := make(map[string]bool, n)
	for last := -1; len(members) < n && d.err == nil; {
		m := d.member(static)
		if m.Rank <= last || names[m.Name] {
			d.fail("worker %q or its rank %d twice", m.Name, m.Rank)
		}
		last, names[m.Name] = m.Rank, true
		members = append(members, m)
	}
	return members
}

// encodeEntry returns the value of the key of a rank that m claims.
func encodeEntry(m Member) []byte { return m.append(begin(kindEntry)) }

// decodeEntry decodes the value of the key of a rank in a static group: the member that claims
// this rank. The error matches ErrCorrupt or ErrVersion.
func decodeEntry(value []byte, rank int) (Member, error) {
	d := decode(value, kindEntry)
	m := d.member(true)
	if m.Rank != rank {
		d.fail("worker %q has rank %d where %d was expected", m.Name, m.Rank, rank)
	}
	return m, d.end()
}

// encodeList returns the value of the key of a member list.
func encodeList(members []Member) []byte { return appendMembers(begin(kindList), members) }

// decodeList decodes the member list of a static group of world members. The error matches
// ErrCorrupt or ErrVersion.
func decodeList(value []byte, world int) ([]Member, error) {
	d := decode(value, kindList)
	members := d.members(true)
	if err := d.end(); err != nil {
		return nil, err
	}
	if len(members) != world || members[world-1].Rank != world-1 {
		return nil, corrupt("a list of %d members in a group of %d", len(members), world)
	}
	return members, nil
}

// claim is the value of a name's key: the member that claims the name.
type claim struct {
	rank int
	id   Incarnation
}

// encode returns the value of the key of a name.
func (c claim) encode() []byte {
	return append(binary.AppendUvarint(begin(kindClaim), uint64(c.rank)), c.id[:]...)
}

// decodeClaim decodes the value of the key of a name. The error matches ErrCorrupt or ErrVersion.
func decodeClaim(value []byte) (claim, error) {
	d := decode(value, kindClaim)
	c := claim{int(d.number(maxRank)), d.incarnation()}
	return c, d.end()
}
