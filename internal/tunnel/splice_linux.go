package tunnel

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// transfer copies src to dst until src ends: by splice(2) between two bare TCP
// connections, whose ReadFrom we do not use because it holds a pipe, which is
// two descriptors, for as long as it waits for the first byte.
func transfer(src, dst net.Conn, moved *atomic.Int64) (readErr, writeErr error) {
	s, ok1 := src.(*net.TCPConn)
	d, ok2 := dst.(*net.TCPConn)
	if !ok1 || !ok2 {
		return copyThrough(src, dst, moved)
	}
	in, err := s.SyscallConn()
	if err != nil {
		return err, nil
	}
	out, err := d.SyscallConn()
	if err != nil {
		return nil, err
	}
	f := flow{moved: moved, stock: stock()}
	return f.run(in, out)
}

// flow is one direction of a tunnel between sockets.
type flow struct {
	moved *atomic.Int64
	stock *conduits
	via   *conduit // nil while src has nothing to read
	eof   bool
	errno error // of the system call that ended fill or drain
}

// run alternates between filling the conduit from in and draining it to out.
// Both wait in the runtime's poller, as a Read or Write would.
func (f *flow) run(in, out syscall.RawConn) (readErr, writeErr error) {
	defer f.release()
	fill, drain := f.fill, f.drain // bound once, as binding allocates
	for {
		if err := in.Read(fill); err != nil {
			return err, nil
		}
		if f.eof || f.errno != nil {
			return f.errno, nil
		}
		if err := out.Write(drain); err != nil {
			return nil, err
		}
		if f.errno != nil {
			return nil, f.errno
		}
	}
}

// fill takes what src has to read. It returns false to wait for more, and then
// holds nothing. To try before every wait is no waste: the poller is
// edge-triggered, and an end of stream that arrived together with the bytes
// before it is not announced again.
func (f *flow) fill(src uintptr) (done bool) {
	if f.via == nil {
		f.via = f.stock.take()
	}
	n, err := f.via.fill(int(src))
	switch {
	case err == unix.EAGAIN:
		f.release()
		return false
	case f.via.buf == nil && unsupported(err):
		f.release()
		f.stock = noPipes
		return f.fill(src)
	case err != nil:
		f.errno = os.NewSyscallError("read", err)
	case n == 0:
		f.eof = true
	}
	return true
}

// drain gives dst what the conduit holds. It returns false to wait until dst
// takes more, and then keeps the conduit.
func (f *flow) drain(dst uintptr) (done bool) {
	for f.via.held > 0 {
		n, err := f.via.drain(int(dst))
		if err == unix.EAGAIN {
			return false
		}
		if err != nil {
			f.errno = os.NewSyscallError("write", err)
			return true
		}
		f.moved.Add(int64(n))
	}
	return true
}

// release gives the conduit back.
func (f *flow) release() {
	if f.via != nil {
		f.stock.put(f.via)
		f.via = nil
	}
}

// unsupported reports whether err says that splice does not work on this kind of
// socket (MPTCP before Linux 6.5, and Go listens for MPTCP by default) or in
// this kind of kernel.
func unsupported(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP
}
