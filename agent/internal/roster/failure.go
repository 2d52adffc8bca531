package roster

// failure is why a generation failed, for every member to say in the same words.
type failure struct {
	gen         uint64
	kind        conflict
	name, other string
	a, b        int
}

// conflict tells what name, other, a and b of a failure are.
type conflict byte

const (
	sameName   conflict = iota + 1 // name, and the two ranks
	sameRank                       // who has it, who wants it, and the rank
	rejoined                       // the name, and its rank
	mixture                        // who came
	otherWorld                     // who came, its size, and that of the others
	noVersion                      // two who have none in common
	lastConflict
)

func (f failure) err() error {
	switch f.kind {
	case sameName:
		return clashf(ErrDuplicateName, "RPC worker name %s is not unique. Workers %d and %d share the same name.", f.name, f.a, f.b)
	case sameRank:
		return clashf(ErrDuplicateRank, "RPC worker id %d is not unique. Worker %s and already has ID and %s cannot be added.", f.a, f.name, f.other)
	case rejoined:
		return clashf(ErrRejoin, "worker %s with rank %d wants to join twice: it was started again while the others waited, or runs twice", f.name, f.a)
	case mixture:
		return clashf(ErrMixed, "RPC group mixes statically and dynamically initialized members which is not supported.")
	case otherWorld:
		return clashf(ErrWorldSize, "worker %s wants a group of %d, and others one of %d", f.name, f.a, f.b)
	default:
		return clashf(ErrVersion, "workers %s and %s have no version in common", f.name, f.other)
	}
}

func (f failure) append(dst []byte) []byte {
	dst = append(dst, byte(f.kind))
	dst = appendNumber(dst, f.gen)
	dst = appendText(dst, f.name)
	dst = appendText(dst, f.other)
	dst = appendNumber(dst, uint64(f.a))
	return appendNumber(dst, uint64(f.b))
}

func (d *decoder) failure() *failure {
	f := &failure{kind: conflict(d.byte()), gen: d.number(maxNumber)}
	f.name, f.other = d.text(maxName), d.text(maxName)
	f.a, f.b = int(d.number(maxWorld)), int(d.number(maxWorld))
	if f.kind == 0 || f.kind >= lastConflict {
		d.fail("a failure of kind %d", f.kind)
	}
	if checkName(f.name) != nil || f.other != "" && checkName(f.other) != nil {
		d.fail("a failure of nobody")
	}
	return f
}
