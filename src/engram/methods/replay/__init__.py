"""The generative baselines: DGR, MeRGAN and EWC-M."""
