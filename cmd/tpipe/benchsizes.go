package main

import "strings"

// sizeList is a list of sizes on the command line, as in 0,8,64KiB.
type sizeList []byteSize

// Set implements flag.Value.
func (l *sizeList) Set(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		var size byteSize
		if err := size.Set(part); err != nil {
			return err
		}
		*l = append(*l, size)
	}
	return nil
}

// String prints what Set reads.
func (l *sizeList) String() string {
	var parts []string
	for _, size := range *l {
		parts = append(parts, strings.ReplaceAll(size.String(), " ", ""))
	}
	return strings.Join(parts, ",")
}
