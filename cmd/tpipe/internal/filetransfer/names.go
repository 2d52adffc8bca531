package filetransfer

import (
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Suffix is the suffix of all file names.
const Suffix = ".safetensors"

// Bounds of names, which all common file systems support.
const (
	maxName    = 1024 // bytes
	maxElement = 255  // bytes between two slashes
	maxDepth   = 32   // elements
)

// checkName returns a *NameError unless name is a valid file name below a directory: relative,
// with elements separated by slashes, without "..", without separators of other systems and
// without characters that are not printable.
func checkName(name string) error {
	reason := ""
	switch {
	case !utf8.ValidString(name):
		reason = "is not UTF-8"
	case len(name) > maxName:
		reason = "has more than " + strconv.Itoa(maxName) + " bytes"
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		reason = "has control characters or others that cannot be seen"
	case strings.Contains(name, `\`):
		reason = "has a backslash, which is a separator on other systems"
	case !fs.ValidPath(name) || !filepath.IsLocal(filepath.FromSlash(name)):
		reason = "is not a plain relative path"
	case !strings.HasSuffix(name, Suffix) || path.Base(name) == Suffix:
		reason = "does not end in NAME" + Suffix
	default:
		reason = checkElements(strings.Split(name, "/"))
	}
	if reason != "" {
		return &NameError{name, reason}
	}
	return nil
}

// checkElements returns why the elements of a name are invalid, "" if they are valid.
func checkElements(elements []string) (reason string) {
	if len(elements) > maxDepth {
		return "lies deeper than " + strconv.Itoa(maxDepth) + " directories"
	}
	for _, e := range elements {
		if len(e) > maxElement {
			return "has an element of more than " + strconv.Itoa(maxElement) + " bytes"
		}
	}
	if longest := maxElement - len(partOf("")); len(elements[len(elements)-1]) > longest {
		return "has a last element of more than " + strconv.Itoa(longest) + " bytes"
	}
	return ""
}

// checkNames returns a *NameError unless all names are valid by checkName and can be created side by
// side on every file system: names and directories that differ by case only, and a file below another
// file, are rejected.
func checkNames(names []string) error {
	spelling := map[string]string{} // of each name and directory
	files := map[string]bool{}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if key := fold(name); files[key] {
			return &NameError{name, "is there twice, or differs from another by case only"}
		} else {
			files[key] = true
		}
		for at := name; at != "."; at = path.Dir(at) {
			key := fold(at)
			if other, known := spelling[key]; known && other != at {
				return &NameError{name, "differs from " + strconv.Quote(other) + " by case only"}
			}
			spelling[key] = at
		}
	}
	for _, name := range names {
		for at := path.Dir(name); at != "."; at = path.Dir(at) {
			if files[fold(at)] {
				return &NameError{name, "lies below another file"}
			}
		}
	}
	return nil
}

// fold returns a key for name that is equal for names that differ by case only.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// partOf returns the name of the part file of the file with that name, in the same directory.
func partOf(name string) string {
	dir, base := path.Split(name)
	return dir + "." + base + ".tpipe-part"
}

// Printable returns text, quoted as a Go string if it contains characters that are not printable.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}
