"""Generative adversarial training: its settings, one step, what is shown to it, and drawing from it."""
