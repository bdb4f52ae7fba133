"""Dynamic Generative Memory (Ostapenko et al. 2019)."""
