package learn

import "strings"

// endless tells why the labels below a domain have no end: nearly all of them look as if a program had made
// them, or they are a series of numbers. It returns "generated", "numbered" or "". atLeast is how many it takes
// to be a series.
func endless(labels []string, atLeast int) string {
	series := make(map[string]int)
	for _, l := range labels {
		if shape := shapeOf(l); shape != l {
			series[shape]++
		}
	}
	generated, numbered := 0, 0
	for _, l := range labels {
		switch shape := shapeOf(l); {
		case looksGenerated(l):
			generated++
		case shape != l && 2*series[shape] >= atLeast:
			numbered++
		}
	}
	switch {
	case !mostOf(generated+numbered, len(labels)):
		return ""
	case generated >= numbered:
		return "generated"
	}
	return "numbered"
}

// mostOf reports whether n is four fifths of all.
func mostOf(n, all int) bool { return 5*n >= 4*all }

// shapeOf returns a label with '#' for each of its numbers: those of a series have one shape.
func shapeOf(label string) string {
	var b strings.Builder
	number := false
	for i := 0; i < len(label); i++ {
		digit := isDigit(label[i])
		switch {
		case !digit:
			b.WriteByte(label[i])
		case !number:
			b.WriteByte('#')
		}
		number = digit
	}
	return b.String()
}

// looksGenerated reports whether a part of a label is a hash, an identifier or the like.
func looksGenerated(label string) bool {
	if strings.HasPrefix(label, "xn--") { // letters of other scripts
		return false
	}
	for part := range strings.FieldsFuncSeq(label, func(r rune) bool { return r == '-' || r == '_' }) {
		if generatedPart(part) {
			return true
		}
	}
	return false
}

func generatedPart(s string) bool {
	var digits, hex, turns, consonants, longest int
	for i := 0; i < len(s); i++ {
		c := s[i]
		if isDigit(c) {
			digits++
		}
		if isDigit(c) || 'a' <= c && c <= 'f' {
			hex++
		}
		if i > 0 && isDigit(c) != isDigit(s[i-1]) {
			turns++
		}
		if isDigit(c) || strings.IndexByte("aeiouy", c) >= 0 {
			consonants = 0
		} else {
			consonants++
		}
		longest = max(longest, consonants)
	}
	switch n := len(s); {
	case digits == n:
		return n >= 4
	case hex == n && digits > 0:
		return n >= 6
	case hex == n:
		return n >= 12
	case turns >= 3:
		return n >= 6
	}
	return longest >= 6 // letters that nobody can say
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// lasting is how long names must keep coming, in seconds, before they are taken to have no end.
const lasting = 24 * 60 * 60

// growing reports whether names first seen at these times, between two others, still come: in each quarter of
// the time at least a tenth of all. It says no where times are unknown.
func growing(firsts []int64, from, to int64) bool {
	if from == 0 || to-from < lasting {
		return false
	}
	var quarters [4]int
	for _, at := range firsts {
		if at < from || at > to {
			return false
		}
		quarters[min(3, (at-from)*4/(to-from))]++
	}
	for _, n := range quarters {
		if 10*n < len(firsts) {
			return false
		}
	}
	return true
}
