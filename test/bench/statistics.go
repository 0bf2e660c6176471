package main

import (
	"math"
	"slices"
)

// median is NaN for nothing, or if anything is NaN.
func median(xs []float64) float64 {
	if len(xs) == 0 || slices.ContainsFunc(xs, math.IsNaN) {
		return math.NaN()
	}
	xs = slices.Sorted(slices.Values(xs))
	n := len(xs)
	return (xs[(n-1)/2] + xs[n/2]) / 2
}

// spread is half the distance between the least and the greatest, as a part of the median.
func spread(xs []float64) float64 {
	m := median(xs)
	if math.IsNaN(m) || m == 0 {
		return math.NaN()
	}
	return (slices.Max(xs) - slices.Min(xs)) / 2 / m
}

// column returns the values of column i, by round; none if the peer failed.
func (r *row) column(i int) []float64 {
	if r == nil || r.err != nil {
		return nil
	}
	xs := make([]float64, len(r.rounds))
	for round, values := range r.rounds {
		xs[round] = values[i]
	}
	return xs
}

// ratio is the median of the ratios of two peers within each round: what changed between rounds is in both.
func ratio(r, against *row, column int) float64 {
	a, b := r.column(column), against.column(column)
	if len(a) != len(b) {
		return math.NaN()
	}
	for i := range a {
		a[i] /= b[i]
	}
	return median(a)
}
