package images

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandboxallow/sandboxallow/test/need"
)

// run names what belongs to this run of the tests.
var run = fmt.Sprintf("sandboxallow-test-%d-%08x", os.Getpid(), rand.Uint32())

// label is on whatever the tests make, but images.
var label = "org.sandboxallow.test=" + run

// version is what the images are stamped with.
const version = "v9.8.7-6-gabcdef0"

// images are those under test, and where their binaries are.
type images struct {
	bin            string
	coredns, caddy string
}

// build has `make images` build them: the test is about what users get.
var build = sync.OnceValues(func() (images, error) {
	ran.Store(true)
	bin, err := os.MkdirTemp("", "images")
	if err != nil {
		return images{}, err
	}
	return images{bin, run + "/coredns:" + version, run + "/caddy:latest"}, makeImages(bin, run)
})

// ran is whether build was called, and so whether there is something to remove.
var ran atomic.Bool

func makeImages(bin, prefix string, vars ...string) error {
	cmd := exec.Command("make", append([]string{"-C", "../..", "images", "BIN=" + bin, "IMAGES=" + prefix,
		"VERSION=" + version}, vars...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// built returns the images, built by the first test that asks.
func built(tb testing.TB) images {
	tb.Helper()
	need.All(tb, need.Root, need.Docker, need.Program("make"),
		need.File("/etc/ssl/certs/ca-certificates.crt"), need.File("/etc/mime.types"))
	im, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return im
}

// remove removes everything that belongs to this run.
func remove() error {
	im, _ := build()
	errs := []error{os.RemoveAll(im.bin)}
	for _, kind := range []struct {
		list, remove []string
	}{
		{[]string{"ps", "-aq", "--filter", "label=" + label}, []string{"rm", "-f"}},
		{[]string{"network", "ls", "-q", "--filter", "label=" + label}, []string{"network", "rm"}},
		{[]string{"volume", "ls", "-q", "--filter", "label=" + label}, []string{"volume", "rm"}},
		{[]string{"images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "reference=" + run + "*/*"}, []string{"rmi"}},
	} {
		out, err := command("", append([]string{"docker"}, kind.list...)...)
		if names := strings.Fields(out); err == nil && len(names) > 0 {
			_, err = command("", append(append([]string{"docker"}, kind.remove...), names...)...)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// folder is a new folder with files in it that every user may read, to be mounted.
func folder(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}
