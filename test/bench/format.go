package main

import (
	"fmt"
	"math"
	"strconv"
)

// Formats of figures, which are in seconds, bytes, units, or units a second. A figure that there is not is a dash.

func nanoseconds(x float64) string  { return figure(x*1e9, "%.0f ns") }
func microseconds(x float64) string { return figure(x*1e6, "%.1f µs") }
func milliseconds(x float64) string { return figure(x*1e3, "%.2f ms") }
func seconds(x float64) string      { return figure(x, "%.3f s") }
func kibibytes(x float64) string    { return figure(x/(1<<10), "%.1f KiB") }
func megabytes(x float64) string    { return figure(x/1e6, "%.1f MB") }
func decimal(x float64) string      { return figure(x, "%.2f") }
func percent(x float64) string      { return figure(x*100, "±%.0f %%") }

// count has commas between the thousands.
func count(x float64) string {
	if math.IsNaN(x) {
		return "–"
	}
	s := strconv.FormatInt(int64(math.Round(x)), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func figure(x float64, format string) string {
	if math.IsNaN(x) {
		return "–"
	}
	return fmt.Sprintf(format, x)
}
