package tunnel

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// bufferSize is what one read takes at most where splice(2) does not apply: two
// TLS records.
const bufferSize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copyThrough copies src to dst through a buffer until src ends. The buffer is
// held while src is silent: a net.Conn in general offers no way to wait for
// bytes without a place to put them.
func copyThrough(src, dst net.Conn, moved *atomic.Int64) (readErr, writeErr error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			m, err := dst.Write(buf[:n])
			moved.Add(int64(m))
			if err != nil {
				return nil, err
			}
		}
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}
