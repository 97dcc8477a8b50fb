package crash

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// command runs a program and fails the test with what it printed.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts a file system: run it as root")
	}
}

// mountTmpfs returns a directory on a file system of its own.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	command(t, "mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir)
	t.Cleanup(func() { command(t, "umount", dir) })
	return dir
}

// volume is an ext4 file system in a file. It is not tmpfs, because the kernel makes no file system
// read-only in which files are open for writing, unless it fails.
type volume struct {
	t     *testing.T
	image string
	dir   string
}

func mountVolume(t *testing.T, bytes int64) *volume {
	t.Helper()
	needRoot(t)
	base := sharedDir(t)
	v := &volume{t: t, image: filepath.Join(t.TempDir(), "image"), dir: filepath.Join(base, "volume")}
	if err := os.Mkdir(v.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(v.image)
	if err == nil {
		err = errors.Join(f.Truncate(bytes), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	command(t, "mkfs.ext4", "-q", "-F", v.image)
	v.mount()
	t.Cleanup(v.unmount)
	return v
}

// sharedDir returns a directory whose mounts come and go in all mount namespaces alike: a namespace that
// somebody made meanwhile would keep a file system alive that was unmounted here, failure and all.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	command(t, "mount", "--bind", dir, dir)
	t.Cleanup(func() { command(t, "umount", dir) })
	command(t, "mount", "--make-shared", dir)
	return dir
}

func (v *volume) mount()   { v.t.Helper(); command(v.t, "mount", "-o", "loop,rw", v.image, v.dir) }
func (v *volume) unmount() { v.t.Helper(); command(v.t, "umount", v.dir) }

// repair replays the journal of a file system that failed and clears its error: the kernel may mount it
// read-only otherwise.
func (v *volume) repair() {
	v.t.Helper()
	out, err := exec.Command("e2fsck", "-fy", v.image).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // repaired
		err = nil
	}
	if err != nil {
		v.t.Fatalf("e2fsck: %v\n%s", err, out)
	}
}

// fail makes the file system read-only at once, as an error of the disk does.
func (v *volume) fail() { v.t.Helper(); command(v.t, "mount", "-o", "remount,abort", v.dir) }

// fill leaves at most so many bytes free; the function it returns gives the rest back.
func fill(t *testing.T, dir string, leave uint64) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(0)
	for step := int64(16 << 20); step >= 4096; {
		have := freeBytes(t, dir)
		if have <= leave {
			break
		}
		take := min(step, int64(have-leave))
		err := unix.Fallocate(int(f.Fd()), 0, size, take)
		switch {
		case err == nil:
			size += take
		case errors.Is(err, unix.ENOSPC): // others write, too
			step /= 2
		default:
			t.Fatalf("fill %s: %v", dir, err)
		}
	}
	return func() {
		t.Helper()
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
}

func freeBytes(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize)
}
