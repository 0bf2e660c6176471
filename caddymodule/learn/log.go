package learn

import (
	"bufio"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxLine bounds a line in octets. What is logged of a decision is far shorter.
const maxLine = 256 << 10

// Read reads a log, compressed by gzip or zstd or not. name is for messages.
func (l *Learner) Read(name string, r io.Reader) error {
	b := bufio.NewReaderSize(r, maxLine)
	text, err := decompressed(b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if text != io.Reader(b) {
		b = bufio.NewReaderSize(text, maxLine)
	}
	var e entry
	for n := 1; ; n++ {
		line, err := readLine(b)
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if len(line) > 0 {
			l.lines++
			if l.line(&e, line) == malformed && err == nil { // the last line may be half written as yet
				l.malformed(name, n)
			}
		}
		if err != nil {
			return nil
		}
	}
}

// line takes a line.
func (l *Learner) line(e *entry, line []byte) kind {
	k := e.parse(line)
	switch k {
	case decided:
		return l.add(e)
	case suppressed:
		l.passed.suppressed += e.suppressed
	}
	return k
}

func (l *Learner) malformed(name string, line int) {
	if l.passed.malformed == 0 {
		l.passed.first = fmt.Sprintf("%s:%d", name, line)
	}
	l.passed.malformed++
}

// readLine returns the next line, nothing of one that is too long. It is valid until the next call.
func readLine(b *bufio.Reader) ([]byte, error) {
	line, err := b.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return line, err
	}
	for err == bufio.ErrBufferFull {
		_, err = b.ReadSlice('\n')
	}
	return nil, err
}

// decompressed returns what reads the text of a log that Caddy may have rolled and compressed: gzip (RFC 1952)
// or zstd (RFC 8878), told by their first octets.
func decompressed(b *bufio.Reader) (io.Reader, error) {
	head, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		return gzip.NewReader(b)
	case string(head) == "\x28\xb5\x2f\xfd":
		d, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return b, nil
}
