package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// WriteFile has write fill a file that gets its name only when it is whole and flushed. After a crash there is
// the old content or the new; a temporary file beside it may be left over.
func WriteFile(path string, write func(io.Writer) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*"+partSuffix)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// partSuffix ends the names of files that are being written.
const partSuffix = ".part"
