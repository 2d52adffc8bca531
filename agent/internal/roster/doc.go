// Package roster is how the members of a group find each other through a store,
// before there is any pipe between them.
//
// A static group has a fixed size: [JoinStatic] returns once all are there, or
// fails for all. Members of a dynamic group come and go: [JoinDynamic] returns at
// once, with those who are there. Both return a [Roster].
//
// # On the store
//
// All that decides something is one key, the gate. It says which generation of the
// group this is and in which phase, and is changed by compare-and-set alone, so
// that its versions form one history, which all members see. A number in it grows
// with each change: no version comes twice.
//
//	roster/<group>/gate               phase, generation; the members of a dynamic group
//	roster/<group>/<gen>/rank/<rank>  who wants that rank
//	roster/<group>/<gen>/name/<name>  who wants that name
//	roster/<group>/<gen>/list/<who>   the members, as who found them complete
//	roster/<group>/<gen>/gone/<rank>  has left
//	roster/<group>/<gen>/told/<rank>  knows that this generation failed
//	roster/<group>/<gen>/decided      bell: no longer open
//	roster/<group>/<gen>/over         bell: ended
//
// A static generation is open until somebody finds all ranks taken and makes it
// complete, or finds a conflict and makes it failed. Whoever withdraws frees the
// rank and then changes the gate, so that nobody completes the generation with
// what he read before. A complete generation has ended when all have left. The next
// one has keys of its own: late writers to the last one do no harm.
//
// Keys other than the gate are claims and hints: every member who waits looks at
// them again from time to time, and does what one who died had left undone.
package roster
