//go:build !unix

package caddymodule

import "errors"

func setBacklog(uintptr, int) error { return errors.ErrUnsupported }
