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

// checkName returns nil if name may be the name of a received file, and otherwise a *NameError with
// the reason. name must be a relative path that ends in .safetensors, with slashes between its
// elements, without "..", backslashes and characters that are not printable, and not too long or
// too deep.
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

// checkElements returns "" if a name with these elements is not too deep and no element is too
// long. Otherwise it returns the reason as a text that follows the name. elements must not be
// empty.
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

// checkNames returns nil if checkName accepts all names and all files can exist side by side on
// every file system. Otherwise it returns a *NameError. It rejects names and directories that
// differ by case only, and a file whose directory is the name of another file.
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

// fold returns a key for name. Names that differ by case only have the same key.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }

// partOf returns the name of the part file of the file name: "dir/.a.tpipe-part" for "dir/a".
func partOf(name string) string {
	dir, base := path.Split(name)
	return dir + "." + base + ".tpipe-part"
}

// Printable returns text unchanged if it is UTF-8 and all its characters are printable. Otherwise
// it returns text quoted as a Go string.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	return strconv.Quote(text)
}
