"""Classifiers in closed form on fixed features: sums over a task's images are all that is kept of it."""
