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
	kindState   = 'g'
	kindEntry   = 'm' // one member
	kindList    = 'l'
	kindClaim   = 'n' // of a name
	kindRemoved = 'r' // incarnations
)

// maxNumber bounds sequence numbers, so that incrementing one cannot overflow.
const maxNumber = math.MaxInt64

// begin returns a new slice with the first two bytes of a value on the store: the format's version
// and kind.
func begin(kind byte) []byte { return []byte{formatVersion, kind} }

// appendText appends the length of s as a varint and the bytes of s to dst, and returns the
// extended slice.
func appendText[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// decoder reads the fields of a value from the store. After the first error, which end returns,
// it reads zero values. A []byte that it returns shares the memory of the value.
type decoder struct {
	data []byte
	err  error
}

// decode checks that value begins with the known format version and with kind, and returns a
// decoder of the fields that follow. If the check fails, the decoder's method end returns the
// error. The decoder keeps value and does not modify it.
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

// fail records an error with this text that matches ErrCorrupt, and drops the bytes not yet read.
// It does nothing if an error is recorded already.
func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err, d.data = corrupt(format, args...), nil
	}
}

// take reads the next n bytes. The result shares the memory of the decoded value. If fewer bytes
// remain, take records an error. After any error it returns nil.
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

// byte reads and returns the next byte. It returns 0 after an error, or if no byte remains, which
// it records as an error.
func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// number reads a varint and returns it. If there is none, or it is larger than limit, number
// records an error. After any error it returns 0.
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

// bytes reads a length and that many bytes. The result shares the memory of the decoded value. A
// length above limit is recorded as an error. After any error bytes returns nil.
func (d *decoder) bytes(limit int) []byte { return d.take(int(d.number(uint64(limit)))) }

// text reads a length and that many bytes, and returns a copy of the bytes as a string. A length
// above limit is recorded as an error. After any error text returns "".
func (d *decoder) text(limit int) string { return string(d.bytes(limit)) }

// incarnation reads the bytes of an Incarnation. Too few bytes are recorded as an error. After any
// error incarnation returns the zero Incarnation.
func (d *decoder) incarnation() (i Incarnation) {
	copy(i[:], d.take(len(i)))
	return i
}

// end returns the first error of the decoder, or nil. It must be called after the last field was
// read: bytes that remain are an error too. The error matches ErrCorrupt, or ErrVersion if the
// value has another format version.
func (d *decoder) end() error {
	if len(d.data) > 0 {
		d.fail("%d bytes too many", len(d.data))
	}
	return d.err
}

// minMemberBytes is the least number of bytes that an encoded member takes.
const minMemberBytes = 24

// append appends the encoding of m to dst and returns the extended slice. The fields Replace and
// Waiting are not encoded.
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

// member reads a member, which shares no memory with the decoded value. It records an error if the
// member is not valid, or if its field Static differs from the argument static. After an error the
// result has no meaning.
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

// appendMembers appends the number of members and the encoding of each to dst, and returns the
// extended slice.
func appendMembers(dst []byte, members []Member) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(members)))
	for _, m := range members {
		dst = m.append(dst)
	}
	return dst
}

// members reads a list of members, which share no memory with the decoded value. It returns nil for
// an empty list. It records an error if the list is not ordered by rank, has a name or a rank
// twice, or has a member whose field Static differs from the argument static. After an error the
// result has no meaning.
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

// encodeEntry returns m encoded as the value by which m claims its rank on the store.
func encodeEntry(m Member) []byte { return m.append(begin(kindEntry)) }

// decodeEntry decodes the value by which a member of a static group has claimed a rank on the
// store, and returns that member. The error matches ErrCorrupt, also if the rank of the member is
// not the argument rank, or ErrVersion; the member then has no meaning.
func decodeEntry(value []byte, rank int) (Member, error) {
	d := decode(value, kindEntry)
	m := d.member(true)
	if m.Rank != rank {
		d.fail("worker %q has rank %d where %d was expected", m.Name, m.Rank, rank)
	}
	return m, d.end()
}

// encodeList returns the encoding of members as the value of a list on the store.
func encodeList(members []Member) []byte { return appendMembers(begin(kindList), members) }

// decodeList decodes a member list that encodeList encoded, and returns the members ordered by
// rank. The error matches ErrVersion, or ErrCorrupt if the value is invalid or does not have
// exactly one static member for each rank from 0 to world-1. world must be positive.
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

// encode returns c encoded as the value by which a member claims its name on the store.
func (c claim) encode() []byte {
	return append(binary.AppendUvarint(begin(kindClaim), uint64(c.rank)), c.id[:]...)
}

// decodeClaim decodes a value that claim.encode encoded. The error matches ErrCorrupt or
// ErrVersion; the claim then has no meaning.
func decodeClaim(value []byte) (claim, error) {
	d := decode(value, kindClaim)
	c := claim{int(d.number(maxRank)), d.incarnation()}
	return c, d.end()
}
