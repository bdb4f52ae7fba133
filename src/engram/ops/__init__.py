"""Kernels: sums that a CPU computes faster in another way, and batch normalisation over processes."""
