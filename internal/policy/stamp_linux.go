package policy

import (
	"syscall"
	"time"
)

// stamp is what the system says of a file besides its bytes. No write leaves the change time as it was, whatever
// is done to the other times.
type stamp struct {
	dev, ino       uint64
	size           int64
	mtime, changed syscall.Timespec
}

// stampOf opens the file, as a network file system asks its server then. It is not for whether a file can be
// read: what goes wrong is no stamp.
func stampOf(path string) (stamp, bool) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return stamp{}, false
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return stamp{}, false
	}
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}, true
}

// settledAt reports whether a write at t or later would show in the times: those of file systems are
// coarse, of some by two seconds.
func (s stamp) settledAt(t time.Time, coarse time.Duration) bool {
	return t.Sub(time.Unix(s.changed.Unix())) > coarse && t.Sub(time.Unix(s.mtime.Unix())) > coarse
}
