package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// catalog is all that -transport and -channel can name.
func catalog() tensorpipe.Profile { return tensorpipe.DefaultProfile() }

// nameList is the value of a flag that lists names of the catalog.
type nameList struct {
	names []string
	given bool // by the user, who is told where one of them does not work
}

// String implements flag.Value.
func (l *nameList) String() string { return strings.Join(l.names, ",") }

// Set implements flag.Value.
func (l *nameList) Set(text string) error {
	*l = nameList{strings.Split(text, ","), true}
	return nil
}

// choose returns the entries that a list names. What nobody asked for by name
// may be unable to work here: the plan of a pipe says so.
func choose[E any](what string, list nameList, all []E, name func(E) string, viable func(E) error) ([]E, error) {
	if err := allKnown(what, list.names, names(all, name)); err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(all, func(e E) bool { return !slices.Contains(list.names, name(e)) })
	for _, e := range chosen {
		if err := viable(e); err != nil && list.given {
			return nil, fmt.Errorf("-%s: %s does not work on this machine: %w", what, name(e), err)
		}
	}
	return chosen, nil
}

// pick cuts a list and checks that all in it exist.
func pick(what, list string, known []string) ([]string, error) {
	names := strings.Split(list, ",")
	return names, allKnown(what, names, known)
}

func allKnown(what string, names, known []string) error {
	for _, n := range names {
		if !slices.Contains(known, n) {
			return usageErrorf("-%s: there is no %s %q, only %s", what, what, n, strings.Join(known, ", "))
		}
	}
	return nil
}

func transportNames(p tensorpipe.Profile) []string { return names(p.Transports, transportName) }

func channelNames(p tensorpipe.Profile) []string { return names(p.Channels, channelName) }

func transportName(e pipe.TransportEntry) string { return e.Name }

func channelName(e pipe.ChannelEntry) string { return e.Name }

func names[E any](entries []E, name func(E) string) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = name(e)
	}
	return out
}
